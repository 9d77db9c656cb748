// src/kernels/sm90/backward_producer.cuh
// The producer warpgroup: one thread plans, one loads tiles, one warp copies lse2 and delta, one
// takes dq away (backward_shared.cuh has the picture).
#pragma once

#include "kernels/device/shares.cuh"
#include "kernels/sm90/backward_dq.cuh"
#include "kernels/sm90/tensor_maps.h"

namespace keyhole::sm90 {

// Which query tiles of a list are followed: all of them. Others: entmax_keys.cuh.
struct AllTiles {
  __device__ __forceinline__ int32_t count(const device::Work& work) const {
    return work.num_tiles;
  }
  struct Walk : device::TileWalk {
    __device__ Walk(const AllTiles&, const device::Work& work) : TileWalk(work) {}
  };
};

// What the planner writes down of an item, in small steps, since it has few registers. ptxas moves
// no loads across the fences.
template <DqOrder kOrder, class Tiles>
__device__ __forceinline__ void plan_item(const BackwardParams& p, const Tiles& tiles,
                                          const WorkItem& item, PlannedKeys& planned) {
  device::decode_head(p.sizes, item.head, planned.work);
  __threadfence_block();
  device::decode_list<true>(p.view, item, planned.work);
  __threadfence_block();
  device::decode_class(p.view, planned.work);
  __threadfence_block();
  planned.num_steps = tiles.count(planned.work);
  planned.dq = dq_rows(p, planned.work);
  if constexpr (kOrder == DqOrder::by_turns) {
    __threadfence_block();
    planned.turns = turn_rows(p, planned.work);
  }
}

// The planner. All divisions happen here, once, instead of in every consumer thread. The list of
// the next item is prefetched while the planner waits for a free slot. follow(planned): what else
// is to be done with an item once it is planned.
template <DqOrder kOrder, class Cursor, class Shared, class Tiles, class Follow>
__device__ __forceinline__ void plan(Cursor at, const BackwardParams& p, const Tiles& tiles,
                                     Shared& shared, Follow follow) {
  uint32_t num_planned = 0, end_step = 0;
  const auto await_slot = [&]() -> PlannedKeys& {
    const uint32_t slot = num_planned % kSlots;
    shared.await(shared.planned_empty[slot], num_planned / kSlots % 2 ^ 1);
    return shared.planned[slot];
  };
  const auto publish = [&] { arrive(shared.is_planned[num_planned % kSlots]); };
  for (; at.is_valid(); at.next()) {
    const WorkItem& item = at.item().work;
    const bool has_turn = kOrder == DqOrder::by_turns && shares_keys(p.sizes);
    if (item.num_tiles == 0 && p.sums.dk != nullptr && !has_turn) continue;  // adds nothing
    prefetch(p.view.t_runs + item.first_run);
    PlannedKeys& planned = await_slot();
    plan_item<kOrder>(p, tiles, item, planned);
    end_step += uint32_t(planned.num_steps);
    planned.end_step = end_step;
    publish();
    follow(planned);
    ++num_planned;
  }
  await_slot().num_steps = -1;
  publish();
}

// Plans items, and writes down the steps of each.
template <DqOrder kOrder, class C, class Tiles>
__device__ __forceinline__ void plan_steps(const BackwardParams& p, const Tiles& tiles,
                                           KeysShared<C>& shared) {
  const auto follow = [&](const PlannedKeys& planned, auto walk) {
    uint32_t step = planned.end_step - uint32_t(planned.num_steps);
    for (; walk.is_valid(); walk.next(), ++step) {
      const uint32_t place = step % kStepPlaces;
      shared.await(shared.step_empty[place], step / kStepPlaces % 2 ^ 1);
      shared.steps[place].tile = walk.tile();
      shared.steps[place].bitmap = walk.bitmap();
      arrive(shared.step_full[place]);
    }
  };
  const Shares& shares = p.view.t_work.shares;
  if constexpr (kOrder == DqOrder::by_turns) {
    plan<kOrder>(device::DrawnCursor(shares, p.turns), p, tiles, shared,
                 [&](const PlannedKeys& planned) {
                   follow(planned, device::ReverseTileWalk(planned.work));
                 });
  } else {
    plan<kOrder>(device::ShareCursor(shares), p, tiles, shared, [&](const PlannedKeys& planned) {
      follow(planned, typename Tiles::Walk(tiles, planned.work));
    });
  }
}

// The tile of a step, once it is known.
template <class C>
__device__ __forceinline__ int32_t tile_of_step(KeysShared<C>& shared, uint32_t step) {
  const uint32_t place = step % kStepPlaces;
  shared.await(shared.step_full[place], step / kStepPlaces % 2);
  return shared.steps[place].tile;
}

template <class C>
class KeysProducer {
 public:
  __device__ KeysProducer(const BackwardMaps& maps, KeysShared<C>& shared)
      : maps_(maps), shared_(shared) {
    for (const RowMaps* rows : {&maps.q, &maps.dout, &maps.k, &maps.v}) prefetch(&rows->longer);
  }

  __device__ __forceinline__ void load() {
    for (;; ++item_) {
      const uint32_t slot = item_ % kSlots;
      shared_.await(shared_.is_planned[slot], item_ / kSlots % 2);
      const int32_t steps = shared_.planned[slot].num_steps;
      if (steps > 0) {
        load_item(steps);
      } else if (steps == 0) {
        // First the values, or a warpgroup could pass this item, and v_empty two phases, while the
        // producer still waits for the first of them.
        begin_values();
        arrive(shared_.v_full);
        arrive(shared_.k_full[slot]);
      } else {
        arrive(shared_.k_full[slot]);
        return;
      }
      arrive(shared_.planned_empty[slot]);
    }
  }

 private:
  using Keys = typename KeysShared<C>::Keys;
  using Queries = typename KeysShared<C>::Queries;

  __device__ __forceinline__ const device::Work& work() const {
    asm volatile("" ::: "memory");  // few registers: reloaded for every use
    return shared_.planned[item_ % kSlots].work;
  }
  __device__ __forceinline__ void load_item(int32_t steps) {
    load_keys(shared_.k[item_ % kSlots], shared_.k_full[item_ % kSlots], maps_.k);
#pragma unroll 1
    for (const uint32_t first = step_, end = step_ + uint32_t(steps); step_ != end; ++step_) {
      const int32_t row = tile_of_step(shared_, step_) * C::tile_q;
      const uint32_t stage = step_ % C::stages;
      shared_.await(shared_.is_empty[stage], step_ / C::stages % 2 ^ 1);
      arrive_and_expect(shared_.is_full[stage], 2 * KeysShared<C>::q_bytes);
      load_rows(shared_.q[stage], shared_.is_full[stage], maps_.q, row);
      load_rows(shared_.dout[stage], shared_.is_full[stage], maps_.dout, row);
      if (step_ != first) continue;
      begin_values();
      load_keys(shared_.v, shared_.v_full, maps_.v);
    }
  }
  // Waits until the values of the item before are not needed any more.
  __device__ __forceinline__ void begin_values() { shared_.await(shared_.v_empty, item_ % 2 ^ 1); }
  // Queries or dout of a step.
  __device__ __forceinline__ void load_rows(const unsigned char* to, uint64_t& is_full,
                                            const RowMaps& maps, int32_t row) {
    const device::Work& of_item = work();
    const ClassRows rows = maps.of_class(int32_t(of_item.residue.first_q));
    copy_tile<Queries>(to, rows.map, is_full, {0, row, rows.class_at, of_item.head, of_item.batch});
  }
  // Keys or values of the item.
  __device__ __forceinline__ void load_keys(const unsigned char* to, uint64_t& is_full,
                                            const RowMaps& maps) {
    const device::Work& of_item = work();
    const ClassRows rows = maps.of_class(int32_t(of_item.residue.first_k));
    arrive_and_expect(is_full, KeysShared<C>::k_bytes);
    copy_tile<Keys>(
        to, rows.map, is_full,
        {0, of_item.row_tile * C::tile_k, rows.class_at, of_item.kv_head, of_item.batch});
  }
  const BackwardMaps& maps_;
  KeysShared<C>& shared_;
  uint32_t item_ = 0, step_ = 0;  // they tell stages and parities
};

// The warpgroup none of whose keys attend to a tile, by the bits of its mask; -1: there is none.
template <class C>
__device__ __forceinline__ int32_t idle_warpgroup(const BackwardParams& p, int32_t bitmap) {
  if (bitmap == kFull) return -1;
  constexpr int kHalfWords = C::tile_q * C::tile_k / 64;  // of a warpgroup
  const uint32_t* words = reinterpret_cast<const uint32_t*>(p.view.t_bitmaps) +
                          int64_t{bitmap} * (2 * kHalfWords) + device::thread_index() % 32;
  int32_t idle = -1;
#pragma unroll 1
  for (int32_t half = 0; half < 2; ++half, words += kHalfWords) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kHalfWords; i += 32) bits |= words[i];
    if (!__any_sync(~0u, bits != 0)) idle = half;
  }
  return idle;
}

// Copies lse2 and delta of every step, and finds out who is idle, and its turn; one warp.
template <DqOrder kOrder, class C>
__device__ __forceinline__ void copy_numbers(const BackwardParams& p, KeysShared<C>& shared) {
  constexpr bool kTurns = kOrder == DqOrder::by_turns;
  // Few registers: two numbers tell all stages and parities, and the rest is made anew in every
  // step.
  uint32_t item = 0, step = 0;
  const auto planned = [&]() -> const PlannedKeys& {
    asm volatile("" : "+r"(item)::"memory");
    return shared.planned[item % kSlots];
  };
  for (;; ++item) {
    shared.await(shared.is_planned[item % kSlots], item / kSlots % 2);
    if (planned().num_steps < 0) return;
#pragma unroll 1
    for (; step != planned().end_step; ++step) {
      const int32_t tile = tile_of_step(shared, step);
      PlannedStep& at_step = shared.steps[step % kStepPlaces];
      at_step.idle_warpgroup = idle_warpgroup<C>(p, at_step.bitmap);
      const device::Work& work = planned().work;
      const int64_t first = int64_t{tile} * C::tile_q;
      const int count = device::rows_left(work.residue.num_q, first, C::tile_q);
      const int lane = int(device::thread_index() % 32);
      int64_t at = int64_t{work.head_index} * p.sizes.q_len + work.residue.first_q +
                   p.view.stride * (first + lane);
      const uint32_t stage = step % C::stages;
      shared.await(shared.is_empty[stage], step / C::stages % 2 ^ 1);
#pragma unroll 1
      for (int i = lane; i < C::tile_q; i += 32, at += 32 * p.view.stride) {
        device::copy_4_bytes_or_zeros(smem_address(&shared.lse2[stage][i]), p.lse2 + at, i < count);
        device::copy_4_bytes_or_zeros(smem_address(&shared.delta[stage][i]), p.delta + at,
                                      i < count);
      }
      mma::arrive_when_copied(shared.is_full[stage]);
      arrive_as_warp(shared.is_full[stage]);  // who is idle is written
      if constexpr (kTurns) {                 // later, since it takes long and is needed late
        PlannedStep& of_turn = shared.steps[step % kStepPlaces];
        of_turn.turn = turn_of(p.view, planned(), of_turn.tile);
        arrive_as_warp(shared.turn_known[step % kStepPlaces]);
      }
    }
    __syncwarp();
    arrive_as_warp(shared.planned_empty[item % kSlots]);
  }
}

}  // namespace keyhole::sm90
