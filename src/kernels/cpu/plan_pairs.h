// src/kernels/cpu/plan_pairs.h
// Walks the pairs of a plan one by one, in all its parts: for paths that take one row at a time.
#pragma once

#include <cstdint>

#include "base/bits.h"
#include "kernels/cpu/tile_walk.h"
#include "plan/view.h"

namespace keyhole::cpu {

// The class of a query or a key, and its index there.
struct Place {
  int32_t c;
  int64_t row;
};
inline Place place_of(const TileView& view, int64_t index, bool is_key) {
  for (int32_t c = 0; c < view.classes; ++c) {
    const int64_t first = is_key ? view.residues[c].first_k : view.residues[c].first_q;
    const int64_t count = is_key ? view.residues[c].num_k : view.residues[c].num_q;
    const int64_t steps = index - first;
    if (steps >= 0 && steps % view.stride == 0 && steps / view.stride < count) {
      return {c, steps / view.stride};
    }
  }
  return {-1, 0};
}

inline bool attends(const TileView& view, int32_t bitmap, int64_t row, int64_t col) {
  if (bitmap == kFull) return true;
  const int64_t words = words_per_row(view.tile.k);
  return get_bit(view.bitmaps + (bitmap * view.tile.q + row) * words, col);
}

// Calls visit(key) for every key that `query` attends to, in all parts of the plan.
template <class Visit>
void for_each_key(const PlanView& plan, int64_t head_index, int64_t query, Visit visit) {
  for (const TileView& view : plan.tiles) {
    const auto [c, row] = place_of(view, query, /*is_key=*/false);
    if (c < 0) continue;
    const ResidueClass& residue = view.residues[c];
    const int32_t q_tile = int32_t(row / view.tile.q);
    for (const TileRun& run : list_of(view, view.group_of[head_index], c, q_tile)) {
      for (int64_t i = 0; i < int64_t{run.count} * view.tile.k; ++i) {
        const int64_t key = run.tile * int64_t{view.tile.k} + i;
        if (key < residue.num_k && attends(view, run.bitmap, row % view.tile.q, i)) {
          visit(residue.first_k + view.stride * key);
        }
      }
    }
  }
  for (const GatherView& view : plan.gathers) {
    for (const int32_t key : keys_of(view, view.group_of_head(head_index), query)) visit(key);
  }
}

// Calls visit(query) for every query that attends to `key`.
template <class Visit>
void for_each_query(const PlanView& plan, int64_t head_index, int64_t key, Visit visit) {
  for (const TileView& view : plan.tiles) {
    const auto [c, row] = place_of(view, key, /*is_key=*/true);
    if (c < 0) continue;
    const ResidueClass& residue = view.residues[c];
    const int32_t k_tile = int32_t(row / view.tile.k);
    for (const TileRun& run : t_list_of(view, view.group_of[head_index], c, k_tile)) {
      for (int64_t i = 0; i < int64_t{run.count} * view.tile.q; ++i) {
        const int64_t query = run.tile * int64_t{view.tile.q} + i;
        if (query < residue.num_q && attends(view, run.bitmap, i, row % view.tile.k)) {
          visit(residue.first_q + view.stride * query);
        }
      }
    }
  }
  for (const GatherView& view : plan.gathers) {
    for (const int32_t list : lists_of(view, view.group_of_head(head_index), key)) {
      for (int64_t query = view.first_query(list); query < view.first_query(list + 1); ++query) {
        visit(query);
      }
    }
  }
}

}  // namespace keyhole::cpu
