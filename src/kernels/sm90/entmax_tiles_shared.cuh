// src/kernels/sm90/entmax_tiles_shared.cuh
// The pipeline of entmax over tiles: the roles, what they share, and who waits for whom.
//
// CTAs are persistent. A query tile with many rows that no scan has finished is processed in passes
// over its key tiles:
//   start     over every n-th key tile, where no scan has given each row a bound of lambda: from a
//             first bound, steps towards the lambda of all keys, as this sample has them
//   sums      of weights, slopes and their slopes against the lambda so far: a step towards lambda.
//             As many passes as the rows need, mostly two
//   output    weights against lambda, multiplied by the values
//
//   producer of keys      1 warp: picks the query tiles, starts the TMA copies of queries and keys
//   producer of values    1 thread: starts the TMA copies of values, in the last pass of a tile
//   consumers             warpgroups of 64 queries each
//
// Barrier          completes a phase when                                   who waits
//   q_full         the item and its queries have arrived                    consumers, values
//   q_empty        every consumer warp has ended the item                   keys
//   k_full         a key tile and its bitmap's number have arrived          consumers
//   k_empty        every consumer warp has its products                     keys
//   v_full         a tile of values has arrived                             consumers
//   v_empty        every consumer warp has its products                     values
//   decided        a pass of sums has ended, and is_output is known         keys
//   output_begins  the last pass of sums has ended                          values
#pragma once

#include "kernels/device/work.cuh"
#include "kernels/sm90/entmax_scan_config.h"
#include "kernels/sm90/stages.cuh"

namespace keyhole::sm90 {

// Of a thread: what a CTA of the scan's size gets at its start, redistributed.
inline constexpr int kTilesProducerRegisters = 56, kTilesConsumerRegisters = 152;

// With fewer rows left, a CTA for each is faster (device/entmax_left_rows.cu).
inline constexpr int kFewestRowsForTiles = 4;

// The passes of a start: how many, and which key tiles they take. The last tile is among them.
constexpr int start_stride(int num_tiles) {
  return num_tiles >= 64 ? 8 : num_tiles >= 16 ? num_tiles / 8 : 1;
}
constexpr int num_start_passes(int num_tiles) { return start_stride(num_tiles) > 1 ? 2 : 1; }
constexpr int num_start_tiles(int num_tiles) {
  return (num_tiles + start_stride(num_tiles) - 1) / start_stride(num_tiles);
}

// A query tile of one head.
struct TilesItem {
  device::Work work;  // num_tiles 0: there is no more work
  bool needs_start;
  int32_t num_rows;  // rows of the tile that exist
  int64_t first_query;
};

template <class C>
struct TilesShared {
  using Queries = Panels<kScanRows, C::head_dim>;
  using Keys = Panels<C::tile_k, C::head_dim>;
  static constexpr int stages = C::stages;
  static constexpr uint32_t q_bytes = Queries::bytes * Queries::count;
  static constexpr uint32_t k_bytes = Keys::bytes * Keys::count;

  alignas(1024) unsigned char q[q_bytes];  // 1024: the period of the swizzle
  unsigned char k[stages][k_bytes], v[stages][k_bytes];
  uint64_t q_full, q_empty, decided, output_begins;
  uint64_t k_full[stages], k_empty[stages], v_full[stages], v_empty[stages];
  float slope[kScanRows];  // sums of slopes, of the last pass of sums
  TilesItem item;
  uint32_t num_items[kScanWarps];  // that a consumer warp has ended: it has no register for it
  int32_t bitmap[stages];
  int32_t is_output;  // whether the next pass is the output
  Waits waits;

  __device__ void init() {
    init_barrier(q_full, 1);
    init_barrier(q_empty, kScanWarps);
    init_barrier(decided, 1);
    init_barrier(output_begins, 1);
    for (int i = 0; i < stages; ++i) {
      init_barrier(k_full[i], 1);
      init_barrier(k_empty[i], kScanWarps);
      init_barrier(v_full[i], 1);
      init_barrier(v_empty[i], kScanWarps);
    }
    for (uint32_t& number : num_items) number = 0;
    waits.gave_up = 0;
    publish_barriers();
  }
};

}  // namespace keyhole::sm90
