// src/kernels/cpu/row_bits.h
// One bit per entry for the row of one query: what it may choose, whichever parts its plan has.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/bits.h"
#include "base/int_math.h"
#include "kernels/cpu/plan_pairs.h"
#include "kernels/cpu/tile_walk.h"
#include "plan/view.h"

namespace keyhole::cpu {

// Sets the bits of `from` in `to`, from bit `begin` on. Bits that are clear touch no memory.
inline void or_bits(const uint64_t* from, int64_t num_words, int64_t begin, uint64_t* to) {
  const int64_t shift = begin % 64;
  to += begin / 64;
  for (int64_t i = 0; i < num_words; ++i) {
    if (from[i] == 0) continue;
    to[i] |= from[i] << shift;
    if (const uint64_t rest = shift == 0 ? 0 : from[i] >> (64 - shift); rest != 0)
      to[i + 1] |= rest;
  }
}

// The row of a query in one part of tiles.
inline void draw_tiles(const TileView& view, int64_t head_index, int64_t query, uint64_t* bits) {
  const auto [c, row] = place_of(view, query, /*is_key=*/false);
  if (c < 0) return;
  const ResidueClass& residue = view.residues[c];
  const int64_t words = words_per_row(view.tile.k);
  for (const TileRun& run :
       list_of(view, view.group_of[head_index], c, int32_t(row / view.tile.q))) {
    const int64_t begin = run.tile * int64_t{view.tile.k};
    const int64_t end = std::min(begin + int64_t{run.count} * view.tile.k, residue.num_k);
    const uint64_t* drawn =
        run.bitmap == kFull
            ? nullptr
            : view.bitmaps + (run.bitmap * int64_t{view.tile.q} + row % view.tile.q) * words;
    if (view.stride == 1 && drawn == nullptr) {
      set_bits(bits, residue.first_k + begin, residue.first_k + end);
    } else if (view.stride == 1) {
      or_bits(drawn, words, residue.first_k + begin, bits);
    } else {
      for (int64_t key = begin; key < end; ++key) {
        if (drawn != nullptr && !get_bit(drawn, key - begin)) continue;
        const int64_t at = residue.first_k + view.stride * key;
        bits[at / 64] |= uint64_t{1} << at % 64;
      }
    }
  }
}

// bits: one per entry, in whole words.
inline void draw_row(const PlanView& plan, int64_t head_index, int64_t query, int64_t entries,
                     uint64_t* bits) {
  std::fill_n(bits, ceil_div(entries, 64), uint64_t{0});
  for (const TileView& view : plan.tiles) draw_tiles(view, head_index, query, bits);
  for (const GatherView& view : plan.gathers) {
    for (const int32_t key : keys_of(view, view.group_of_head(head_index), query)) {
      bits[key / 64] |= uint64_t{1} << key % 64;
    }
  }
}

// All entries.
inline void draw_all(int64_t entries, uint64_t* bits) {
  std::fill_n(bits, ceil_div(entries, 64), uint64_t{0});
  set_bits(bits, 0, entries);
}

inline int64_t count_bits(const uint64_t* bits, int64_t entries) {
  int64_t count = 0;
  for (int64_t i = 0; i < ceil_div(entries, 64); ++i) count += std::popcount(bits[i]);
  return count;
}

// Calls visit(entry) for every set bit, ascending.
template <class Visit>
void for_each_bit(const uint64_t* bits, int64_t entries, Visit visit) {
  for (int64_t i = 0; i < ceil_div(entries, 64); ++i) {
    for (uint64_t word = bits[i]; word != 0; word &= word - 1) {
      visit(i * 64 + std::countr_zero(word));
    }
  }
}

}  // namespace keyhole::cpu
