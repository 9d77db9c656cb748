// src/kernels/sm90/backward_dq.cuh
// dq of one step: which warp computes which part, and where it is stored. It is added to the fp32
// sums that all CTAs share, or written to dq itself if the query tile has only one step.
#pragma once

#include "kernels/device/query_blocks.cuh"
#include "kernels/sm90/backward_shared.cuh"
#include "kernels/sm90/write_rows.cuh"

namespace keyhole::sm90 {

// Each consumer warpgroup computes 64 x 64 of a step's dq: half the columns, or half the rows.
template <class C>
struct DqShare {
  static constexpr bool is_half_the_columns = C::head_dim == 128;
  static_assert(is_half_the_columns ? C::tile_q == 64 : C::head_dim == 64 && C::tile_q == 128);
  static __device__ __forceinline__ int row(int warpgroup) {
    return is_half_the_columns ? 0 : 64 * warpgroup;
  }
  static __device__ __forceinline__ int column(int warpgroup) {
    return is_half_the_columns ? 64 * warpgroup : 0;
  }
};

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

// A warp has 16 queries and 64 columns, `columns` of which exist. The sums are stored in blocks of
// 16 queries x 8 columns, so these blocks are contiguous. Staged in the same order, they leave in
// one bulk addition.
__device__ __forceinline__ void add_blocks(const float (&dq)[32], float* staged, float* to,
                                           int columns, int lane) {
  if (lane == 0) await_reads_of_stores();  // those of the previous step
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    float* const block = staged + j * device::kBlockFloats + device::place_of_lane(lane);
    *reinterpret_cast<float4*>(block) = {dq[4 * j], dq[4 * j + 1], dq[4 * j + 2], dq[4 * j + 3]};
  }
  publish_stores();
  __syncwarp();
  if (lane == 0 && columns > 0) {
    add_from_shared(to, smem_address(staged), min(columns, 64) * 16 * int(sizeof(float)));
    commit_stores();
  }
}
// Sums in row order: added two columns at a time. `rows` of the rows exist.
__device__ __forceinline__ void add_rows(const float (&dq)[32], float scale, float* to,
                                         int64_t row_step, int rows, int columns, int lane) {
  to += lane / 4 * row_step + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 32; i += 2) {
    const int h = i / 2 % 2, j = i / 4;
    device::add_to_global(to + 8 * h * row_step + 8 * j, scale * dq[i], scale * dq[i + 1],
                          8 * h + lane / 4 < rows && 8 * j < columns);
  }
}

// thread: index in its warpgroup
template <class T, class C>
__device__ __forceinline__ void put_dq(const BackwardParams& p, KeysShared<C>& shared, int slot,
                                       const float (&dq)[32], int32_t tile, int warpgroup,
                                       int thread) {
  const DqRows place = shared.planned[slot].dq;
  const int warp = thread / 32, lane = thread % 32;
  const int column = DqShare<C>::column(warpgroup), columns = p.sizes.head_dim - column;
  const int64_t first = int64_t{tile} * C::tile_q + DqShare<C>::row(warpgroup) + warp * 16;
  if (place.form == DqForm::blocks) {
    add_blocks(dq, shared.dq_blocks[warpgroup * 4 + warp],
               p.sums.dq + place.first + first * p.sizes.head_dim + column * 16, columns, lane);
    return;
  }
  const int rows = device::rows_left(place.num_q, first, 16);
  const int64_t at = place.first + first * place.row_step + column;
  if (place.form == DqForm::rows) {
    add_rows(dq, p.sizes.scale, p.sums.dq + at, place.row_step, rows, columns, lane);
  } else if (write_rows(dq, p.sizes.scale, static_cast<T*>(p.dq.data) + at, place.row_step, rows,
                        columns, lane)) {
    *p.found_nonfinite = 1;
  }
}

}  // namespace keyhole::sm90
