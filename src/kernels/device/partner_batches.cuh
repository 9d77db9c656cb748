// src/kernels/device/partner_batches.cuh
// The keys that a query attends to, or the queries that attend to a key, over all parts of a plan,
// in batches of 32. exact_backward.cuh has the slower form, one at a time.
#pragma once

#include "kernels/device/exact_backward.cuh"

namespace keyhole::device {

__device__ inline bool tile_attends_in(BitmapLayout layout, bool is_transposed,
                                       const TileView& view, int32_t bitmap, int32_t row,
                                       int32_t col) {
  constexpr BitmapLayout kRows = BitmapLayout::row_major, kMma = BitmapLayout::mma;
  if (layout == kRows) {
    return is_transposed ? tile_attends<kRows, true>(view, bitmap, row, col)
                         : tile_attends<kRows, false>(view, bitmap, row, col);
  }
  return is_transposed ? tile_attends<kMma, true>(view, bitmap, row, col)
                       : tile_attends<kMma, false>(view, bitmap, row, col);
}

// Calls visit(partner) by the whole warp, with the partner of each lane, or -1: the keys that query
// `index` of a head attends to; with kTransposed, the queries that attend to key `index`. Only
// partners with keep(partner), asked by single lanes.
template <bool kTransposed, class Keep, class Visit>
__device__ void for_each_in_tiles(const TileView& view, BitmapLayout layout, int32_t head_index,
                                  int64_t index, Keep keep, Visit visit) {
  const int32_t lane = int32_t(threadIdx.x % 32);
  const int32_t group = view.group_of[head_index];
  const ClassRow place = class_row_of(view, index, /*is_key=*/kTransposed);
  if (group < 0 || place.class_index < 0) return;
  const ResidueClass residue = view.residues[place.class_index];
  const int32_t rows = kTransposed ? view.tile.k : view.tile.q;
  const int32_t cols = kTransposed ? view.tile.q : view.tile.k;
  const int64_t first = kTransposed ? residue.first_q : residue.first_k;
  const int64_t count = kTransposed ? residue.num_q : residue.num_k;
  const int64_t tiles_per_class = kTransposed ? view.k_tiles : view.q_tiles;
  const int64_t list =
      (int64_t{group} * view.classes + place.class_index) * tiles_per_class + place.row / rows;
  const TileRun* runs =
      kTransposed ? view.t_runs + view.t_list_begin[list] : view.runs + view.list_begin[list];
  const int32_t num_runs = kTransposed ? view.t_list_count[list] : view.list_count[list];
  const int32_t row = int32_t(place.row % rows);
  for (int32_t i = 0; i < num_runs; ++i) {
    const TileRun run = runs[i];
    for (int32_t tile = run.tile; tile < run.tile + run.count; ++tile) {
      for (int32_t col = lane; col - lane < cols; col += 32) {
        const int64_t inside = int64_t{tile} * cols + col;
        const int64_t partner = first + view.stride * inside;
        const bool is_hit = col < cols && inside < count && keep(partner) &&
                            tile_attends_in(layout, kTransposed, view, run.bitmap, row, col);
        if (__any_sync(~0u, is_hit)) visit(is_hit ? int32_t(partner) : -1);
      }
    }
  }
}

template <class Visit>
__device__ void for_each_key_in_list(const GatherView& view, int32_t head_index, int64_t query,
                                     Visit visit) {
  const int32_t lane = int32_t(threadIdx.x % 32);
  const KeyList list = key_list(view, view.group_of_head(head_index), query / view.rows_per_list);
  for (int32_t first = 0; first < list.count; first += 32) {
    const int32_t key = list.at(uint32_t(first + lane));
    if (__any_sync(~0u, key >= 0)) visit(key);
  }
}

// The queries of one list that are to be kept.
template <class Keep, class Visit>
__device__ void for_each_query_of_list(const GatherView& view, int64_t list, Keep keep,
                                       Visit visit) {
  const int64_t end = view.first_query(list + 1);
  for (int64_t first = view.first_query(list); first < end; first += 32) {
    const int64_t query = first + threadIdx.x % 32;
    const bool is_hit = query < end && keep(query);
    if (__any_sync(~0u, is_hit)) visit(is_hit ? int32_t(query) : -1);
  }
}

template <class Keep, class Visit>
__device__ void for_each_query_of_key(const GatherView& view, int32_t head_index, int64_t key,
                                      Keep keep, Visit visit) {
  const int32_t lane = int32_t(threadIdx.x % 32);
  const int32_t group = view.group_of_head(head_index);
  if (group < 0) return;
  if (view.t_list_begin != nullptr) {
    const int64_t t_list = group * view.k_len + key;
    const int32_t* const lists = view.t_lists + view.t_list_begin[t_list];
    const int32_t count = view.t_list_count[t_list];
    for (int32_t i = 0; i < count; i += view.rows_per_list == 1 ? 32 : 1) {
      if (view.rows_per_list == 1) {
        const int32_t query = i + lane < count ? lists[i + lane] : -1;
        const bool is_hit = query >= 0 && keep(int64_t{query});
        if (__any_sync(~0u, is_hit)) visit(is_hit ? query : -1);
      } else {
        for_each_query_of_list(view, lists[i], keep, visit);
      }
    }
    return;
  }
  // No lists by key: those of the queries to be kept are searched.
  for (int64_t first = 0; first < view.lists; first += 32) {
    bool is_wanted = false;
    if (first + lane < view.lists) {
      const int64_t end = view.first_query(first + lane + 1);
      for (int64_t query = view.first_query(first + lane); query < end && !is_wanted; ++query) {
        is_wanted = keep(query);
      }
    }
    for (uint32_t left = __ballot_sync(~0u, is_wanted); left != 0; left &= left - 1) {
      const int64_t list = first + __ffs(int(left)) - 1;
      const KeyList entries = key_list(view, group, list);
      for (int32_t i = 0; i < entries.count; i += 32) {
        const bool is_hit = entries.at(uint32_t(i + lane)) == key;
        for (int32_t hits = __popc(__ballot_sync(~0u, is_hit)); hits > 0; --hits) {
          for_each_query_of_list(view, list, keep, visit);
        }
      }
    }
  }
}

template <class Visit>
__device__ void for_each_key_batch(const DevicePlan& plan, BitmapLayout layout, int32_t head_index,
                                   int64_t query, Visit visit) {
  const auto all = [](int64_t) { return true; };
  for (int32_t part = 0; part < plan.num_tiles; ++part) {
    for_each_in_tiles<false>(plan.tiles[part], layout, head_index, query, all, visit);
  }
  for (int32_t part = 0; part < plan.num_gathers; ++part) {
    for_each_key_in_list(plan.gathers[part], head_index, query, visit);
  }
}
template <class Keep, class Visit>
__device__ void for_each_query_batch(const DevicePlan& plan, BitmapLayout layout,
                                     int32_t head_index, int64_t key, Keep keep, Visit visit) {
  for (int32_t part = 0; part < plan.num_tiles; ++part) {
    for_each_in_tiles<true>(plan.tiles[part], layout, head_index, key, keep, visit);
  }
  for (int32_t part = 0; part < plan.num_gathers; ++part) {
    for_each_query_of_key(plan.gathers[part], head_index, key, keep, visit);
  }
}

// Collects partners until a batch is full, in the order they come.
struct BatchRoom {
  int32_t* waiting;  // [64] in shared memory, of the warp
  int32_t count = 0;

  __device__ void add(int32_t partner) {  // at most 31 may be waiting
    const uint32_t lane = threadIdx.x % 32, hits = __ballot_sync(~0u, partner >= 0);
    if (partner >= 0) waiting[count + __popc(hits & ((1u << lane) - 1))] = partner;
    count += __popc(hits);
    __syncwarp();
  }
  // The partner at a place of the first batch, or -1. Removes the batch.
  __device__ int32_t take(int32_t place) {
    const int32_t lane = int32_t(threadIdx.x % 32);
    const int32_t taken = place < count ? waiting[place] : -1;
    const int32_t later = lane + 32 < count ? waiting[lane + 32] : -1;
    __syncwarp();
    if (lane + 32 < count) waiting[lane] = later;
    count = max(count - 32, 0);
    __syncwarp();
    return taken;
  }
};

}  // namespace keyhole::device
