// src/kernels/sm80/entmax_scan_shared.cuh
// The pipeline of the scan: the roles, what they share, and who waits for whom.
//
// CTAs are persistent and process one query tile after another.
//
//   producer     1 warp: starts the copies of key tiles, of each item twice: for the look and for
//                the scan
//   consumers    warps of 16 queries each, which are in registers. They wait for keys, not for each
//                other: one moves its lists while the others go on with the stages that are full
//
// Barrier    completes a phase when                              who waits
//   full     a key tile and its bitmap's number have arrived     consumers
//   empty    every warp has its products                         producer
//
// All of them read the work items of the CTA, so a tile needs no more than its number.
#pragma once

#include "kernels/device/entmax_params.h"
#include "kernels/mma/entmax_lane_lists.cuh"
#include "kernels/mma/waits.cuh"
#include "kernels/sm80/entmax_scan_config.h"

namespace keyhole::sm80 {

struct ScanParams {
  device::Sizes sizes;
  device::DeviceTensor q, k;
  device::CandidateLists candidates;
  TileView view;
};

// What a consumer warp seldom needs of its work item: it has no registers to spare.
struct WarpItem {
  int64_t first_row;  // among the rows of all heads; the next one is `stride` further
  int32_t num_rows;   // how many of the 16 exist
  int32_t first_key;  // of the residue class
  int32_t num_tiles;
  int32_t next;  // item of the CTA, or kLastItem
};

template <class C>
struct ScanShared {
  alignas(128) unsigned char k[C::stages][C::tile_bytes];
  // Of the warps (mma/entmax_lane_lists.cuh). The queries pass through them.
  unsigned char lists[kScanWarps][C::list_slots * mma::kSlotBytes];
  WarpItem items[kScanWarps];
  uint64_t full[C::stages], empty[C::stages];
  int32_t bitmap[C::stages], tile[C::stages];
  mma::Waits waits;

  static_assert(C::list_slots * mma::kSlotBytes >= 16 * C::row_bytes, "queries do not fit");

  __device__ void init() {
    for (int i = 0; i < C::stages; ++i) {
      mma::init_barrier(full[i], 32 + 1);  // the copies of 32 lanes, and the numbers
      mma::init_barrier(empty[i], kScanWarps);
    }
    waits.gave_up = 0;
  }
};

}  // namespace keyhole::sm80
