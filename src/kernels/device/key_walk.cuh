// src/kernels/device/key_walk.cuh
// The keys that one query attends to, over all parts of a plan, 32 at a time: one per lane.
// exact_backward.cuh has the slower form for single keys, in both directions.
#pragma once

#include "kernels/device/exact_backward.cuh"

namespace keyhole::device {

// Several warps may share a walk: each takes every count-th tile. A part of key lists is the first
// one's alone.
struct KeyShare {
  int32_t index = 0, count = 1;
};

// A part of tiles is followed from its last key to its first. Where the nearest keys have the
// largest scores, a row meets those early, and drops most others at once.
struct KeyWalk {
  const DevicePlan& plan;
  BitmapLayout layout;
  int32_t head_index;
  int64_t query;
  KeyShare share;
  int32_t parts_opened = 0;
  int32_t tiles_of_others;  // before the next one of this share
  // In a part of tiles. What is left is counted down: runs, tiles of a run, columns of a tile.
  const TileView* view = nullptr;
  const TileRun* runs = nullptr;
  int32_t runs_left = 0, tiles_left = 0, cols_left = 0;
  TileRun run = {};
  int32_t row = 0;  // in its tile
  int64_t first_k = 0, num_k = 0;
  // In a part of key lists.
  const GatherView* gather = nullptr;
  int32_t list_left = 0;

  __device__ KeyWalk(const DevicePlan& of_plan, BitmapLayout of_bitmaps, int32_t of_head,
                     int64_t of_query, KeyShare of_walk = {})
      : plan(of_plan),
        layout(of_bitmaps),
        head_index(of_head),
        query(of_query),
        share(of_walk),
        tiles_of_others(of_walk.index) {}

  // The next key of each lane; -1: none. False: there are no more. The whole warp calls.
  __device__ __forceinline__ bool next(int32_t& key) {
    while (true) {
      if (cols_left > 0) {
        cols_left -= 32;
        key = key_of_column(cols_left + int32_t(threadIdx.x % 32));
        if (__any_sync(~0u, key >= 0)) return true;
      } else if (list_left > 0) {
        list_left -= 32;
        key = list().at(uint32_t(list_left) + threadIdx.x % 32);
        if (__any_sync(~0u, key >= 0)) return true;
      } else if (tiles_left > tiles_of_others) {
        tiles_left -= tiles_of_others + 1;
        tiles_of_others = share.count - 1;
        cols_left = (view->tile.k + 31) / 32 * 32;
      } else if (tiles_left > 0) {
        tiles_of_others -= tiles_left;
        tiles_left = 0;
      } else if (runs_left > 0) {
        run = runs[--runs_left];
        tiles_left = run.count;
      } else if (parts_opened < plan.num_tiles) {
        open(plan.tiles[parts_opened++]);
      } else if (parts_opened < plan.num_tiles + plan.num_gathers) {
        gather = plan.gathers + (parts_opened++ - plan.num_tiles);
        list_left = share.index == 0 ? (list().count + 31) / 32 * 32 : 0;
      } else {
        return false;
      }
    }
  }

 private:
  __device__ KeyList list() const {
    return key_list(*gather, gather->group_of_head(head_index), query / gather->rows_per_list);
  }

  __device__ void open(const TileView& part) {
    const int32_t group = part.group_of[head_index];
    const ClassRow place = class_row_of(part, query, /*is_key=*/false);
    if (group < 0 || place.class_index < 0) return;
    view = &part;
    const ResidueClass residue = part.residues[place.class_index];
    first_k = residue.first_k;
    num_k = residue.num_k;
    row = int32_t(place.row % part.tile.q);
    const int64_t list = (int64_t{group} * part.classes + place.class_index) * part.q_tiles +
                         place.row / part.tile.q;
    runs = part.runs + part.list_begin[list];
    runs_left = part.list_count[list];
  }

  __device__ int32_t key_of_column(int32_t col) const {
    const int64_t index = int64_t{run.tile + tiles_left} * view->tile.k + col;
    if (col >= view->tile.k || index >= num_k) return -1;
    const bool attends =
        layout == BitmapLayout::row_major
            ? tile_attends<BitmapLayout::row_major, false>(*view, run.bitmap, row, col)
            : tile_attends<BitmapLayout::mma, false>(*view, run.bitmap, row, col);
    return attends ? int32_t(first_k + view->stride * index) : -1;
  }
};

}  // namespace keyhole::device
