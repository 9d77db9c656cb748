// src/kernels/sm90/wide_backward_producer.cuh
// One warp for each Half: copies k or v of every item, and q or dout with lse2 or delta of every
// step.
#pragma once

#include "kernels/sm90/backward_producer.cuh"
#include "kernels/sm90/wide_backward_shared.cuh"

namespace keyhole::sm90 {

// Walk: TileWalk, or where dq goes by turns ReverseTileWalk.
template <class C, Half kHalf, class Walk>
class WideProducer {
 public:
  __device__ WideProducer(const BackwardParams& params, const BackwardMaps& maps,
                          WideShared<C>& shared)
      : p_(params),
        rows_(kHalf == Half::weights ? maps.q : maps.dout),
        keys_(kHalf == Half::weights ? maps.k : maps.v),
        shared_(shared) {}

  __device__ __forceinline__ void load(int lane) {
    if (lane == 0) {
      prefetch(&rows_.longer);
      prefetch(&keys_.longer);
    }
    for (PipelineState<kSlots> slot;; slot.next()) {
      shared_.await(shared_.is_planned[slot.stage], slot.parity);
      const PlannedKeys& planned = shared_.planned[slot.stage];
      if (planned.num_steps < 0) return;
      if (planned.num_steps > 0) {
        if (lane == 0) load_keys(planned.work);
        ++items_;
        load_steps(planned.work, lane);
      }
      __syncwarp();
      arrive_as_warp(shared_.planned_empty[slot.stage]);
    }
  }

 private:
  static constexpr int kAt = int(kHalf);

  __device__ __forceinline__ void load_keys(const device::Work& work) {
    auto& half = shared_.halves[kAt];
    shared_.await(half.keys_empty, items_ % 2 ^ 1);
    const ClassRows rows = keys_.of_class(int32_t(work.residue.first_k));
    arrive_and_expect(half.keys_full, WideShared<C>::k_bytes);
    copy_tile<typename WideShared<C>::Keys>(
        shared_.tiles[kAt].keys, rows.map, half.keys_full,
        {0, work.row_tile * C::tile_k, rows.class_at, work.kv_head, work.batch});
  }
  __device__ __forceinline__ void load_steps(const device::Work& work, int lane) {
    auto& half = shared_.halves[kAt];
    const int64_t stride = p_.view.stride;
    const float* const numbers = (kHalf == Half::weights ? p_.lse2 : p_.delta) +
                                 int64_t{work.head_index} * p_.sizes.q_len + work.residue.first_q +
                                 stride * lane;
    for (Walk walk(work); walk.is_valid(); walk.next(), ++step_) {
      const int stage = int(step_ % C::stages);
      shared_.await(half.is_empty[stage], step_ / C::stages % 2 ^ 1);
      if (lane == 0) {
        half.bitmap[stage] = walk.bitmap();
        if constexpr (kHalf == Half::weights) shared_.tile[step_ % kTilesInUse] = walk.tile();
        arrive_and_expect(half.is_full[stage], WideShared<C>::q_bytes);
        const ClassRows rows = rows_.of_class(int32_t(work.residue.first_q));
        copy_tile<typename WideShared<C>::Queries>(
            shared_.tiles[kAt].rows[stage], rows.map, half.is_full[stage],
            {0, walk.tile() * C::tile_q, rows.class_at, work.head, work.batch});
      }
      __syncwarp();
      const int64_t first = int64_t{walk.tile()} * C::tile_q;
      const int count = device::rows_left(work.residue.num_q, first, C::tile_q);
#pragma unroll
      for (int i = 0; i < C::tile_q; i += 32) {
        device::copy_4_bytes_or_zeros(smem_address(&half.numbers[stage][i + lane]),
                                      numbers + stride * (first + i), i + lane < count);
      }
      mma::arrive_when_copied(half.is_full[stage]);
    }
  }

  const BackwardParams& p_;
  const RowMaps& rows_;
  const RowMaps& keys_;
  WideShared<C>& shared_;
  uint32_t step_ = 0, items_ = 0;
};

}  // namespace keyhole::sm90
