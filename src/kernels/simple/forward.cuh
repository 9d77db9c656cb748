// src/kernels/simple/forward.cuh
// The kernel to read first: exact fp32 arithmetic on any GPU, no tensor cores. A CTA processes one
// work item, a list of key tiles for one query tile of one head. It has the outline of every
// attention kernel here:
//
//   for each tile of the list
//     scores = q . k       a matrix product, 32 columns of q and k in shared memory at a time
//     weights = softmax    online: when a row's maximum grows, what it accumulated is rescaled
//     out += weights . v   a matrix product, the values of some keys in shared memory at a time
//   divide by the sums; rows that are not finite are recomputed exactly
//
// Both products are register-blocked: a thread computes 8 x 4 scores and 8 x 4n outputs, so that
// one 16-byte read of shared memory feeds about 11 to 16 multiply-adds. Three or four CTAs share an
// SM. While one waits for memory or at a barrier the others compute, so nothing is prefetched here.
#pragma once

#include "kernels/device/exact_forward.cuh"
#include "kernels/device/row_target.cuh"
#include "kernels/device/work.cuh"
#include "kernels/simple/forward_steps.cuh"

namespace keyhole::simple {

using device::ForwardParams;
using device::Work;

// The rows of the item's query tile.
struct QueryRows {
  int64_t first;  // in its class
  int64_t count;  // of the class

  __device__ bool has(int row) const { return first + row < count; }
  __device__ int64_t query(const ForwardParams& p, const Work& work, int row) const {
    return work.residue.first_q + p.view.stride * (first + row);
  }
};

// The addresses of the tile's rows: row r begins at first + r * step.
template <class Element>
struct TargetRows {
  Element* first;
  int64_t step;
};
__device__ inline TargetRows<float> state_rows(const ForwardParams& p, const Work& work,
                                               const QueryRows& rows) {
  const int64_t row = int64_t{work.head_index} * p.sizes.q_len + rows.query(p, work, 0);
  return {p.states.out + row * p.sizes.v_head_dim, int64_t{p.view.stride} * p.sizes.v_head_dim};
}
__device__ inline TargetRows<float> slot_rows(const ForwardParams& p, const Work& work) {
  const int64_t row = device::slot_row(p, work.head_index, work.slot, 0);
  return {p.slots.out + row * p.sizes.v_head_dim, p.sizes.v_head_dim};
}
template <class T>
__device__ TargetRows<T> out_rows(const ForwardParams& p, const Work& work, const QueryRows& rows) {
  return {p.out.row<T>(work.batch, work.head, rows.query(p, work, 0)),
          p.view.stride * p.out.row_stride};
}

// Finishes the rows; maxima and sums are in shared memory. One thread per row decides how. A
// partial result (slot) is stored as it is.
template <class C>
__device__ void decide_finish(const ForwardParams& p, const Work& work, const QueryRows& rows,
                              ForwardShared<C>& shared) {
  const int row = int(threadIdx.x);
  if (row >= C::tile_q || !rows.has(row)) return;
  const float max2 = shared.max[row], sum = shared.sum[row];
  device::RowFinish finish = {1, 0, device::log2_of_sum(max2, sum)};
  if (work.slot < 0) {
    finish = device::finish_row(p, work.head_index, rows.query(p, work, row), max2, sum);
  }
  shared.finish[row] = finish;
  shared.is_bad[row] = !(finish.lse2 < INFINITY);  // +inf or NaN; -inf: nothing attended
}

// Scales the outputs to what is stored, and marks rows that have a value that is not finite.
template <class C>
__device__ void finish_outputs(const ForwardParams& p, const Work& work, const QueryRows& rows,
                               ForwardShared<C>& shared, Outputs<C>& out) {
  if (work.slot < 0) {
#pragma unroll
    for (int i = 0; i < C::out_rows; ++i) out.multiply_row(i, shared.finish[out.row(i)].factor);
    if (!p.is_first) {
      const TargetRows<float> states = state_rows(p, work, rows);
#pragma unroll
      for (int i = 0; i < C::out_rows; ++i) {
        const int row = out.row(i);
        if (!rows.has(row)) break;  // rows ascend with i
        out.add_row(i, shared.finish[row].state_factor, states.first + row * states.step,
                    p.sizes.v_head_dim);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < C::out_rows; ++i) {
    const int row = out.row(i);  // several threads may mark it: all write 1
    if (rows.has(row) && !out.row_is_finite(i)) shared.is_bad[row] = 1;
  }
}

template <class Element, class C>
__device__ void store_rows(const TargetRows<Element>& to, const QueryRows& rows, int32_t cols,
                           bool in_vectors, const ForwardShared<C>& shared, const Outputs<C>& out) {
#pragma unroll
  for (int i = 0; i < C::out_rows; ++i) {
    const int row = out.row(i);
    if (rows.has(row) && !shared.is_bad[row]) {
      out.store_row(i, to.first + row * to.step, cols, in_vectors);
    }
  }
}

// Stores the finite rows: all threads store outputs, one thread per row its lse or slot statistics.
template <class T, class C>
__device__ void store_outputs(const ForwardParams& p, const Work& work, const QueryRows& rows,
                              const ForwardShared<C>& shared, const Outputs<C>& out) {
  const int32_t cols = p.sizes.v_head_dim;
  if (work.slot >= 0) {
    store_rows(slot_rows(p, work), rows, cols, cols % 4 == 0, shared, out);
  } else if (!p.is_last) {
    store_rows(state_rows(p, work, rows), rows, cols, cols % 4 == 0, shared, out);
  } else {
    store_rows(out_rows<T>(p, work, rows), rows, cols, device::is_in_vectors<T>(p.out, cols),
               shared, out);
  }
  const int row = int(threadIdx.x);
  if (row >= C::tile_q || !rows.has(row) || shared.is_bad[row]) return;
  if (work.slot >= 0) {
    const int64_t place = device::slot_row(p, work.head_index, work.slot, row);
    p.slots.max[place] = shared.max[row];
    p.slots.sum[place] = shared.sum[row];
  } else {
    device::store_lse(p, work.head_index, rows.query(p, work, row), shared.finish[row].lse2);
  }
}

template <class T, class C>
__device__ void recompute_bad_rows(const ForwardParams& p, const Work& work, const QueryRows& rows,
                                   const ForwardShared<C>& shared) {
  for (int row = int(threadIdx.x) / 32; row < C::tile_q && rows.has(row); row += C::threads / 32) {
    if (!shared.is_bad[row]) continue;
    const Work copy = work;  // its address is taken; `work` itself can stay in registers
    device::recompute_row<T, BitmapLayout::row_major>(p, copy, row);
  }
}

template <class T, class C>
__global__ void __launch_bounds__(C::threads, C::ctas_per_sm)
    forward(const __grid_constant__ ForwardParams p) {
  __shared__ ForwardShared<C> shared;
  const Work work = device::my_work(p.sizes, p.view, p.heads_per_section);
  if (work.is_nothing) return;
  const ResidueClass& residue = work.residue;
  const auto q = class_rows<T>(p.q, work.batch, work.head, residue.first_q, residue.num_q,
                               p.view.stride, p.sizes.head_dim);
  const auto k = class_rows<T>(p.k, work.batch, work.kv_head, residue.first_k, residue.num_k,
                               p.view.stride, p.sizes.head_dim);
  const auto v = class_rows<T>(p.v, work.batch, work.kv_head, residue.first_k, residue.num_k,
                               p.view.stride, p.sizes.v_head_dim);
  const auto rule = device::CarefulRule::of(device::rule_of(p.sizes));
  const QueryRows rows = {int64_t{work.row_tile} * C::tile_q, residue.num_q};

  begin_softmax(shared);
  Outputs<C> out;
  for (device::TileWalk walk(work); walk.is_valid(); walk.next()) {
    const int64_t first_key = int64_t{walk.tile()} * C::tile_k;

    float score[C::score_rows][C::score_keys] = {};  // s = q . k
    for (int32_t col = 0; col < p.sizes.head_dim; col += C::chunk) {
      Block<T, C::tile_q, C::chunk, C::threads> q_block;
      Block<T, C::tile_k, C::chunk, C::threads> k_block;
      q_block.fetch(q, rows.first, col);
      k_block.fetch(k, first_key, col);
      __syncthreads();  // all threads have used what is overwritten now
      q_block.put(shared.q);
      k_block.put(shared.k);
      __syncthreads();
      add_products<C>(score, shared);
    }
    bend_and_mask<C>(
        score, rule,
        walk.bitmap() == kFull ? nullptr : p.view.bitmaps + int64_t{walk.bitmap()} * C::tile_q);
    absorb<C>(score, shared);  // p = 2^(s - max)

    for (int key = 0; key < C::tile_k; key += C::value_keys) {  // out += p . v
      Block<T, C::value_keys, C::columns, C::threads> v_block;
      v_block.fetch(v, first_key + key, 0);
      __syncthreads();  // the weights are written, and k and earlier values have been used
      v_block.put(shared.v);
      __syncthreads();
      if (key == 0) {
#pragma unroll
        for (int i = 0; i < C::out_rows; ++i) out.multiply_row(i, shared.shrink[out.row(i)]);
      }
      out.add_values(shared, key);
    }
  }

  __syncthreads();
  // Computed again instead of kept: the mainloop needs the registers.
  const Work finished = device::my_work(p.sizes, p.view, p.heads_per_section);
  decide_finish<C>(p, finished, rows, shared);
  __syncthreads();
  finish_outputs<C>(p, finished, rows, shared, out);
  __syncthreads();
  store_outputs<T, C>(p, finished, rows, shared, out);
  recompute_bad_rows<T, C>(p, finished, rows, shared);
}

}  // namespace keyhole::simple
