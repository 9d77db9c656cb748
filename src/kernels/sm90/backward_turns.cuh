// src/kernels/sm90/backward_turns.cuh
// Gradients in a fixed order. The key tiles of a query tile are added to dq in ascending order,
// whoever computes them: a counter in memory tells how many have been added. So are query heads to
// dk and dv of the kv head that they share. These kernels are others than those that add in any
// order, which have no registers to spare.
//
// CTAs draw items in the order of their lists (view.h), so that an item only waits for items that
// have begun. Lists are followed from their end: in causal patterns and in windows, key tiles then
// come to a query tile in the order of their turns, and nobody waits for long.
#pragma once

#include "kernels/sm90/backward_shared.cuh"

namespace keyhole::sm90 {

__device__ __forceinline__ bool shares_keys(const device::Sizes& sizes) {
  return sizes.heads != sizes.kv_heads;
}

__device__ __forceinline__ TurnRows turn_rows(const BackwardParams& p, const device::Work& work) {
  const TileView& view = p.view;
  const auto class_of = [&](int64_t unit) { return unit * view.classes + work.class_index; };
  const int64_t all = int64_t{p.sizes.num_heads()} * view.classes * view.q_tiles;
  const int64_t keys = class_of(work.batch * p.sizes.kv_heads + work.kv_head) * view.k_tiles;
  return {class_of(view.group_of[work.head_index]) * view.q_tiles,
          1 + class_of(work.head_index) * view.q_tiles, 1 + all + 2 * (keys + work.row_tile)};
}

// Waits until the counter says so. Sums are added up, and counters kept, in the L2 cache: what has
// been added there before a count is there for those who see the count, without a fence.
// meanwhile(): what is to be done between two looks.
template <class Meanwhile>
__device__ __forceinline__ void await_count(const int32_t* counter, int32_t count,
                                            Meanwhile meanwhile) {
#ifdef KEYHOLE_BOUNDED_WAITS
  constexpr int kMany = 1 << 22;
  for (int polls = 0; device::load_relaxed(counter) < count; ++polls) {
    if (polls >= kMany) mma::raise_error();
    meanwhile();
  }
#else
  while (device::load_relaxed(counter) < count) meanwhile();
#endif
}
__device__ __forceinline__ void await_count(const int32_t* counter, int32_t count) {
  await_count(counter, count, [] {});
}

// How many key tiles of a run come before that of the item.
__device__ __forceinline__ int32_t tiles_before(const PlannedKeys& planned, int32_t first_tile,
                                                int32_t count) {
  return max(0, min(count, planned.work.row_tile - first_tile));
}
// The same of a whole list, that of a query tile; for a warp.
__device__ __forceinline__ int32_t turn_of(const TileView& view, const PlannedKeys& planned,
                                           int32_t q_tile) {
  const int64_t list = planned.turns.first_list + q_tile;
  const TileRun* const runs = view.runs + view.list_begin[list];
  int32_t before = 0;
#pragma unroll 1
  for (int32_t i = int32_t(device::thread_index() % 32); i < view.list_count[list]; i += 32) {
    before += tiles_before(planned, runs[i].tile, runs[i].count);
  }
  return __reduce_add_sync(~0u, before);
}

__device__ __forceinline__ int32_t* turn_counter(const BackwardParams& p,
                                                 const PlannedKeys& planned, int32_t q_tile) {
  return p.turns + planned.turns.first_counter + q_tile;
}

// For the warp that adds dq. A step takes no less than an addition with all that comes before and
// after it; so the counter of a step is asked for while the addition before it is under way.
// counted: what it said then. A caller's list may name a tile twice, which then has the same turn
// twice.
__device__ __forceinline__ void await_turn(const BackwardParams& p, const PlannedKeys& planned,
                                           const PlannedStep& step, int32_t counted) {
  if (counted < step.turn && device::thread_index() % 32 == 0) {
    await_count(turn_counter(p, planned, step.tile), step.turn);
  }
  __syncwarp();
}
// Blocks are added by the first lane, rows by all.
__device__ __forceinline__ void end_turn(const BackwardParams& p, const PlannedKeys& planned,
                                         const PlannedStep& step) {
  if (planned.dq.form == DqForm::rows) {
    __threadfence();
    __syncwarp();
  }
  if (device::thread_index() % 32 == 0) {
    await_stores();
    device::add_relaxed(turn_counter(p, planned, step.tile), 1);
  }
}

// For a warpgroup, around what it adds to dk and dv of its half of the keys, or to one of them, of
// all keys (wide heads): its head is the n-th of those that share them. meet(): waits for the
// warpgroup.
template <class Meet>
__device__ __forceinline__ void await_turn_of_head(const BackwardParams& p,
                                                   const PlannedKeys& planned, int half,
                                                   bool is_first_thread, Meet meet) {
  if (!shares_keys(p.sizes)) return;
  if (is_first_thread) {
    const int32_t turn = planned.work.head % (p.sizes.heads / p.sizes.kv_heads);
    await_count(p.turns + planned.turns.keys_counter + half, turn);
  }
  meet();
}
template <class Meet>
__device__ __forceinline__ void end_turn_of_head(const BackwardParams& p,
                                                 const PlannedKeys& planned, int half,
                                                 bool is_first_thread, Meet meet) {
  if (!shares_keys(p.sizes)) return;
  __threadfence();
  meet();
  if (is_first_thread) {
    device::add_relaxed(p.turns + planned.turns.keys_counter + half, 1);
  }
}

}  // namespace keyhole::sm90
