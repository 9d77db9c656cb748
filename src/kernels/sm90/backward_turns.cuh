// src/kernels/sm90/backward_turns.cuh
// dq in a fixed order. The key tiles of a query tile are added in ascending order, whoever computes
// them: a counter in memory tells how many have been added. These kernels are others than those
// that add in any order, which have no registers to spare.
//
// CTAs draw items in the order of their lists (view.h), so that an item only waits for items that
// have begun. Lists are followed from their end: in causal patterns and in windows, key tiles then
// come to a query tile in the order of their turns, and nobody waits for long.
#pragma once

#include "kernels/sm90/backward_shared.cuh"

namespace keyhole::sm90 {

__device__ __forceinline__ TurnRows turn_rows(const BackwardParams& p, const device::Work& work) {
  const TileView& view = p.view;
  const auto first_of = [&](int32_t unit) {
    return (int64_t{unit} * view.classes + work.class_index) * view.q_tiles;
  };
  return {first_of(view.group_of[work.head_index]), 1 + first_of(work.head_index)};
}

// How many key tiles come before that of the item in the list of a query tile; for a warp.
__device__ __forceinline__ int32_t turn_of(const TileView& view, const PlannedKeys& planned,
                                           int32_t q_tile) {
  const int64_t list = planned.turns.first_list + q_tile;
  const TileRun* const runs = view.runs + view.list_begin[list];
  int32_t before = 0;
#pragma unroll 1
  for (int32_t i = int32_t(device::thread_index() % 32); i < view.list_count[list]; i += 32) {
    const int32_t tile = runs[i].tile;
    before += max(0, min(runs[i].count, planned.work.row_tile - tile));
  }
  return __reduce_add_sync(~0u, before);
}

__device__ __forceinline__ int32_t* turn_counter(const BackwardParams& p,
                                                 const PlannedKeys& planned,
                                                 const PlannedStep& step) {
  return p.turns + planned.turns.first_counter + step.tile;
}

// For a warp. A caller's list may name a tile twice, which then has the same turn twice.
__device__ __forceinline__ void await_turn(const BackwardParams& p, const PlannedKeys& planned,
                                           const PlannedStep& step) {
  const int32_t* const counter = turn_counter(p, planned, step);
#ifdef KEYHOLE_BOUNDED_WAITS
  constexpr int kMany = 1 << 22;
  for (int polls = 0; device::load_acquire(counter) < step.turn; ++polls) {
    if (polls >= kMany) mma::raise_error();
  }
#else
  while (device::load_acquire(counter) < step.turn) {
  }
#endif
  fence_between_proxies();
}
// All that the warp has added is in memory.
__device__ __forceinline__ void end_turn(const BackwardParams& p, const PlannedKeys& planned,
                                         const PlannedStep& step) {
  await_stores();
  fence_between_proxies();
  __threadfence();
  __syncwarp();
  if (device::thread_index() % 32 == 0) device::add_release(turn_counter(p, planned, step), 1);
}

}  // namespace keyhole::sm90
