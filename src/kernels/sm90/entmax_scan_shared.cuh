// src/kernels/sm90/entmax_scan_shared.cuh
// The pipeline of the scan: the roles, what they share, and who waits for whom.
//
// CTAs are persistent and process one query tile after another.
//
//   producer     1 thread: reads the CTA's work items and starts the TMA copies of key tiles: for
//                each item twice: for the look, then for the scan
//   consumers    warpgroups of 64 queries each; queries are in registers
//
// Barrier    completes a phase when                                        who waits
//   full     a key tile, its bitmap's number and the item have arrived     consumers
//   empty    every warp has its products                                   producer
//   told     every warp has said whether its lists are nearly full         consumers
#pragma once

#include "kernels/device/entmax_params.h"
#include "kernels/mma/entmax_lane_lists.cuh"
#include "kernels/sm90/entmax_launch.h"
#include "kernels/sm90/entmax_scan_config.h"
#include "kernels/sm90/stages.cuh"

namespace keyhole::sm90 {

using mma::kSlotBytes;

// The bitmap of a tile in which no pair attends. A query tile without keys gets a list of one such
// tile, so that it needs no special case.
inline constexpr int32_t kNothingAttends = -2;

// In place of a bitmap: the query tile has so many rows with too many keys that it is given up. All
// of its rows are left alone.
inline constexpr int32_t kGivenUp = -3;
// Rows left alone after the look from which on a query tile is given up, if entmax_tiles.cuh can
// take it.
inline constexpr int32_t kMostRowsLeft = kScanRows / 4;

// A query tile of one head and how many key tiles follow.
struct ScanItem {
  int32_t num_tiles;  // 0: there is no more work
  int32_t num_looks;  // tiles of the look, which comes first: the same, or none
  int32_t head_index, batch, head;
  int32_t num_rows;     // rows of the tile that exist
  int64_t first_query;  // row r is query first_query + stride * r
  int64_t first_key;    // of the residue class
  int32_t num_left;     // rows left alone after the look
};

template <class C>
struct ScanShared {
  using Keys = Panels<C::tile_k, C::head_dim>;
  static constexpr uint32_t k_bytes = Keys::bytes * Keys::count;
  // Of the lists of a warp (mma/entmax_lane_lists.cuh): as many as there is room for.
  static constexpr int list_slots =
      (kEntmaxSharedBytes - C::stages * k_bytes - 2048) / (kScanWarps * kSlotBytes);

  alignas(1024) unsigned char k[C::stages][k_bytes];  // 1024: the period of the swizzle
  unsigned char lists[kScanWarps][list_slots * kSlotBytes];
  uint64_t full[C::stages], empty[C::stages], told[2];
  uint32_t crowded[2];  // the last tile after which a warp said so, of even ones and of odd ones
  // One more than there are stages: the producer is at most that many items ahead, and a warp reads
  // its item again at its end.
  ScanItem items[C::stages + 1];
  int32_t bitmap[C::stages], tile[C::stages];
  Waits waits;

  __device__ void init() {
    for (int i = 0; i < C::stages; ++i) {
      init_barrier(full[i], 1);
      init_barrier(empty[i], kScanWarps);
    }
    for (int i = 0; i < 2; ++i) {
      init_barrier(told[i], kScanWarps);
      crowded[i] = ~0u;
    }
    waits.gave_up = 0;
    publish_barriers();
  }
};

}  // namespace keyhole::sm90
