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

// The planner. All divisions happen here, once, instead of in every consumer thread. The list of
// the next item is prefetched while the planner waits for a free slot.
template <class Shared, class Tiles>
__device__ __forceinline__ void plan(const BackwardParams& p, const Tiles& tiles, Shared& shared) {
  PipelineState<kSlots> slot;
  for (device::ShareCursor at(p.view.t_work.shares); at.is_valid(); at.next()) {
    const WorkItem item = at.item().work;
    if (item.num_tiles == 0 && p.sums.dk != nullptr) continue;  // adds nothing
    prefetch(p.view.t_runs + item.first_run);
    shared.await(shared.planned_empty[slot.stage], slot.parity ^ 1);
    PlannedKeys& planned = shared.planned[slot.stage];
    planned.work = device::work_of<true>(p.sizes, p.view, item, item.head);
    asm volatile("" ::: "memory");  // few registers: reload the rest from shared memory
    planned.num_steps = tiles.count(planned.work);
    planned.dq = dq_rows(p, planned.work);
    arrive(shared.is_planned[slot.stage]);
    slot.next();
  }
  shared.await(shared.planned_empty[slot.stage], slot.parity ^ 1);
  shared.planned[slot.stage].num_steps = -1;
  arrive(shared.is_planned[slot.stage]);
}

template <class C, class Tiles>
class KeysProducer {
 public:
  __device__ KeysProducer(const BackwardMaps& maps, const Tiles& tiles, KeysShared<C>& shared)
      : maps_(maps), tiles_(tiles), shared_(shared) {
    for (const RowMaps* rows : {&maps.q, &maps.dout, &maps.k, &maps.v}) prefetch(&rows->longer);
  }

  __device__ __forceinline__ void load() {
    for (PipelineState<kSlots> slot;; slot.next()) {
      shared_.await(shared_.is_planned[slot.stage], slot.parity);
      const PlannedKeys& planned = shared_.planned[slot.stage];
      const int32_t steps = planned.num_steps;
      if (steps > 0) {
        load_item(planned, slot.stage);
      } else {
        arrive(shared_.k_full[slot.stage]);
      }
      if (steps < 0) return;
      if (steps == 0) {
        begin_values();
        arrive(shared_.v_full);
      }
      arrive(shared_.planned_empty[slot.stage]);
    }
  }

 private:
  using Keys = typename KeysShared<C>::Keys;
  using Queries = typename KeysShared<C>::Queries;

  __device__ __forceinline__ void load_item(const PlannedKeys& planned, int slot) {
    const device::Work& work = planned.work;
    const int32_t first_q = int32_t(work.residue.first_q);
    load_keys(shared_.k[slot], shared_.k_full[slot], maps_.k, work);

    BoxAt queries = {0, 0, maps_.q.of_class(first_q).class_at, work.head, work.batch};
    bool is_first = true;
    for (typename Tiles::Walk walk(tiles_, work); walk.is_valid(); walk.next(), q_.next()) {
      const int stage = q_.stage;
      shared_.await(shared_.is_empty[stage], q_.parity ^ 1);
      shared_.bitmap[stage] = walk.bitmap();
      shared_.tile[q_.parity * C::stages + stage] = walk.tile();
      queries.row = walk.tile() * C::tile_q;
      arrive_and_expect(shared_.is_full[stage], 2 * KeysShared<C>::q_bytes);
      copy_tile<Queries>(shared_.q[stage], maps_.q.of_class(first_q).map, shared_.is_full[stage],
                         queries);
      copy_tile<Queries>(shared_.dout[stage], maps_.dout.of_class(first_q).map,
                         shared_.is_full[stage], queries);
      if (!is_first) continue;
      is_first = false;
      begin_values();
      load_keys(shared_.v, shared_.v_full, maps_.v, work);
    }
  }
  // Waits until the values of the item before are not needed any more.
  __device__ __forceinline__ void begin_values() {
    shared_.await(shared_.v_empty, v_.parity ^ 1);
    v_.next();
  }
  // Keys or values. Their box is made anew for both: few registers.
  __device__ __forceinline__ void load_keys(const unsigned char* to, uint64_t& is_full,
                                            const RowMaps& maps, const device::Work& work) {
    asm volatile("" ::: "memory");
    const ClassRows rows = maps.of_class(int32_t(work.residue.first_k));
    arrive_and_expect(is_full, KeysShared<C>::k_bytes);
    copy_tile<Keys>(to, rows.map, is_full,
                    {0, work.row_tile * C::tile_k, rows.class_at, work.kv_head, work.batch});
  }
  const BackwardMaps& maps_;
  const Tiles& tiles_;
  KeysShared<C>& shared_;
  PipelineState<C::stages> q_;
  PipelineState<1> v_;
};

// Copies lse2 and delta of every step; one warp.
template <class C, class Tiles>
__device__ __forceinline__ void copy_numbers(const BackwardParams& p, const Tiles& tiles,
                                             KeysShared<C>& shared, int lane) {
  PipelineState<C::stages> state;
  for (PipelineState<kSlots> slot;; slot.next()) {
    shared.await(shared.is_planned[slot.stage], slot.parity);
    const PlannedKeys& planned = shared.planned[slot.stage];
    if (planned.num_steps < 0) return;
    const int64_t stride = p.view.stride, num_q = planned.work.residue.num_q;
    const int64_t query = int64_t{planned.work.head_index} * p.sizes.q_len +
                          planned.work.residue.first_q + stride * lane;
    for (typename Tiles::Walk walk(tiles, planned.work); walk.is_valid();
         walk.next(), state.next()) {
      const int64_t first = int64_t{walk.tile()} * C::tile_q;
      const int count = device::rows_left(num_q, first, C::tile_q);
      const int64_t from = query + stride * first;
      shared.await(shared.is_empty[state.stage], state.parity ^ 1);
#pragma unroll
      for (int i = 0; i < C::tile_q; i += 32) {
        const bool is_inside = i + lane < count;
        const int64_t at = from + stride * i;
        device::copy_4_bytes_or_zeros(smem_address(&shared.lse2[state.stage][i + lane]),
                                      p.lse2 + at, is_inside);
        device::copy_4_bytes_or_zeros(smem_address(&shared.delta[state.stage][i + lane]),
                                      p.delta + at, is_inside);
      }
      device::commit_copies();
      device::await_copies<0>();
      __syncwarp();
      arrive(shared.is_full[state.stage]);
    }
    __syncwarp();
    arrive_as_warp(shared.planned_empty[slot.stage]);
  }
}

}  // namespace keyhole::sm90
