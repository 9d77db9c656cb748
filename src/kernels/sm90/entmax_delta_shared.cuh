// src/kernels/sm90/entmax_delta_shared.cuh
// The pipeline of the kernel that computes delta of tiled rows (entmax_delta.cuh).
//
// A CTA has one query tile and visits its key tiles. Its warpgroups have 64 queries each, or take
// turns with the key tiles if the tile has no more than 64.
//
//   consumers    2 warpgroups; q and dout are in registers
//   producer     1 thread: starts the TMA copies of keys and values
//
// Barrier    completes a phase when                                  who waits
//   full     keys, values and the bitmap's number have arrived       consumers
//   empty    every warp that uses them has its products              producer
#pragma once

#include "kernels/sm90/backward_config.h"
#include "kernels/sm90/stages.cuh"

namespace keyhole::sm90 {

inline constexpr int kDeltaWarps = 8;  // consumers
inline constexpr int kDeltaThreads = 32 * kDeltaWarps + kWarpgroup;
// Registers per thread. The launch gives 168 to each of 384 threads; setmaxnreg moves them.
inline constexpr int kDeltaConsumerRegisters = 240, kDeltaProducerRegisters = 24;

template <class C>
struct DeltaShared {
  using Keys = Panels<C::tile_k, C::head_dim>;  // and values
  static constexpr uint32_t k_bytes = Keys::bytes * Keys::count;
  static constexpr int stages = C::head_dim == 64 ? 4 : 3;  // 128 and 192 KiB
  // Warpgroups take turns: each has every second key tile.
  static constexpr bool takes_turns = C::tile_q == 64;
  static_assert(takes_turns || C::tile_q == 128);

  alignas(1024) unsigned char k[stages][k_bytes], v[stages][k_bytes];
  uint64_t full[stages], empty[stages];
  int32_t bitmap[stages];
  float2 others[64];  // sums of the second warpgroup, if they take turns
  Waits waits;

  __device__ void init() {
    for (int i = 0; i < stages; ++i) {
      init_barrier(full[i], 1);
      init_barrier(empty[i], takes_turns ? kDeltaWarps / 2 : kDeltaWarps);
    }
    waits.gave_up = 0;
    publish_barriers();
  }
};

}  // namespace keyhole::sm90
