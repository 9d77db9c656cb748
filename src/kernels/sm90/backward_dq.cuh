// src/kernels/sm90/backward_dq.cuh
// Where dq goes. Sums in fp32 that all CTAs share: consumers stage dq of a step in shared memory,
// in blocks (query_blocks.cuh), and a warp of its own adds it, so that they do not wait for memory.
// If a query tile has only one step, consumers write dq itself (backward_keys.cuh).
#pragma once

#include "kernels/device/query_blocks.cuh"
#include "kernels/sm90/backward_shared.cuh"
#include "kernels/sm90/write_rows.cuh"

namespace keyhole::sm90 {

__device__ __forceinline__ DqRows dq_rows(const BackwardParams& p, const device::Work& work) {
  const int64_t head_dim = p.sizes.head_dim, head = work.head_index;
  if (p.dq_order == DqOrder::written) {
    const int64_t first = work.batch * p.dq.batch_stride + work.head * p.dq.head_stride +
                          work.residue.first_q * p.dq.row_stride;
    return {first, p.view.stride * p.dq.row_stride, work.residue.num_q, DqForm::written};
  }
  if (p.dq_rows_per_class != 0) {
    const int64_t first = (head * p.view.classes + work.class_index) * p.dq_rows_per_class;
    return {first * head_dim, 0, work.residue.num_q, DqForm::blocks};
  }
  const int64_t first = head * p.sizes.q_len + work.residue.first_q;
  return {first * head_dim, p.view.stride * head_dim, work.residue.num_q, DqForm::rows};
}

// The sums are stored in the same blocks: those of a step are contiguous, and leave in one bulk
// addition unless some columns do not exist.
template <class C>
__device__ __forceinline__ void add_blocks(const KeysShared<C>& shared, float* to, int columns) {
  constexpr int kFloat = sizeof(float);
  if (columns == C::head_dim) {
    add_from_shared(to, smem_address(shared.dq), C::tile_q * C::head_dim * kFloat);
  } else {
#pragma unroll 1
    for (int i = 0; i < C::tile_q / 16; ++i) {
      add_from_shared(to + i * 16 * columns, smem_address(shared.dq[i]), 16 * columns * kFloat);
    }
  }
  commit_stores();
  await_reads_of_stores();
}

// Rows are taken eight at a time, from the upper or the lower half of their blocks: a lane holds
// two columns of a row in each block. half: the address of the lane's part of the first one.
__device__ __forceinline__ float2 load_staged(uint32_t half, int block, float scale) {
  const uint32_t at = half + uint32_t(block) * (device::kBlockFloats * sizeof(float));
  const float2 two = device::load_shared_floats(at);
  return {scale * two.x, scale * two.y};
}

// Sums in row order. Two lanes exchange one of two blocks, so that each adds four columns.
__device__ __forceinline__ void add_rows(uint32_t half, float scale, float* to, bool exists,
                                         int columns, int lane) {
  const bool is_odd = lane % 2 != 0;
  to += lane % 4 / 2 * 4 + (is_odd ? 8 : 0);
#pragma unroll 1
  for (int block = 0; 8 * block < columns; block += 2) {
    const float2 own = load_staged(half, block + is_odd, scale);
    const float2 other = load_staged(half, block + !is_odd, scale);
    const float2 got = {__shfl_xor_sync(~0u, other.x, 1), __shfl_xor_sync(~0u, other.y, 1)};
    const bool is_wanted = exists && 8 * (block + is_odd) < columns;
    device::add_to_global(to + 8 * block, is_odd ? got : own, is_odd ? own : got, is_wanted);
  }
}

// 16 rows of blocks, from row `first` of the class on.
__device__ __forceinline__ void add_rows_of_warp(const BackwardParams& p, const DqRows& place,
                                                 uint32_t blocks, int64_t first) {
#pragma unroll 1
  for (int i = 0; i < 2; ++i) {
    const int lane = int(device::thread_index() % 32);  // anew: few registers
    const int64_t row = first + 8 * i + lane / 4;
    add_rows(blocks + uint32_t(16 * lane + 8 * i), p.sizes.scale,
             p.sums.dq + place.first + row * place.row_step, row < place.num_q, p.sizes.head_dim,
             lane);
  }
}

// One warp: dq of every step of the CTA.
template <class C>
__device__ __forceinline__ void take_dq(const BackwardParams& p, KeysShared<C>& shared,
                                        bool is_leader) {
  // Few registers: two numbers tell all stages and parities.
  uint32_t step = 0;
  for (uint32_t item = 0;; ++item) {
    const uint32_t slot = item % kSlots;
    shared.await(shared.is_planned[slot], item / kSlots % 2);
    const int32_t steps = shared.planned[slot].num_steps;
    if (steps < 0) break;
    const DqRows& place = shared.planned[slot].dq;
#pragma unroll 1
    for (const uint32_t end = step + uint32_t(steps); step != end; ++step) {
      shared.await(shared.dq_full, step % 2);
      const int64_t first = int64_t{shared.tile[step % kTilesInUse]} * C::tile_q;
      if (place.form == DqForm::blocks) {
        const int columns = p.sizes.head_dim;
        if (is_leader) add_blocks<C>(shared, p.sums.dq + place.first + first * columns, columns);
      } else if (place.form == DqForm::rows) {
#pragma unroll 1
        for (int i = 0; i < C::tile_q / 16; ++i) {
          add_rows_of_warp(p, place, smem_address(shared.dq[i]), first + 16 * i);
        }
      }
      __syncwarp();
      if (is_leader) arrive(shared.dq_empty);
    }
    __syncwarp();
    arrive_as_warp(shared.planned_empty[slot]);
  }
  if (is_leader) await_stores();
}

}  // namespace keyhole::sm90
