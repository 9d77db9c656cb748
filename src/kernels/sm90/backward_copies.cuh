// src/kernels/sm90/backward_copies.cuh
// The warps of a CTA that do not multiply bring the queries of each step.
#pragma once

#include "kernels/sm90/backward_shared.cuh"

namespace keyhole::sm90 {

// Copies what a tensor (q or dout) and numbers of its rows (lse2 or delta) have for every step, as
// soon as its stage is free. kCopiers threads.
template <class T, class C>
__device__ __forceinline__ void copy_steps(const BackwardParams& p, KeysShared<C>& shared,
                                           const device::Work& work,
                                           const device::DeviceTensor& tensor, int columns,
                                           const float* numbers_of_rows, uint32_t rows_at,
                                           uint32_t numbers_at, int thread) {
  const int64_t stride = p.view.stride, row_step = stride * tensor.row_stride;
  const int64_t query = work.residue.first_q;
  const T* rows = tensor.row<const T>(work.batch, work.head, query);
  const float* numbers = numbers_of_rows + int64_t{work.head_index} * p.sizes.q_len + query;
  Turn<C::stages> turn;
  for (device::TileWalk walk(work); walk.is_valid(); walk.next(), turn.next()) {
    const int64_t first = int64_t{walk.tile()} * C::tile_q;
    const int count = device::rows_left(work.residue.num_q, first, C::tile_q);
    await(shared.is_empty[turn.stage], turn.parity ^ 1);
    copy_tile<C::tile_q, C::head_dim, kCopiers, T>(
        rows_at + uint32_t(turn.stage * sizeof(shared.q[0])),
        {rows + first * row_step, row_step, count, columns}, thread);
#pragma unroll
    for (int i = 0; i < C::tile_q; i += kCopiers) {
      const int row = i + thread;
      device::copy_4_bytes_or_zeros(numbers_at + uint32_t(turn.stage * C::tile_q + row) * 4,
                                    numbers + stride * (first + row), row < count);
    }
    if (threadIdx.x == kMultipliers) shared.step[turn.stage] = {walk.tile(), walk.bitmap()};
    device::commit_copies();
    device::await_copies<0>();
    publish_stores();
    arrive(shared.is_full[turn.stage]);
  }
}

}  // namespace keyhole::sm90
