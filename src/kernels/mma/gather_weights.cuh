// src/kernels/mma/gather_weights.cuh
// The first half of a backward pass over spans of keys (device/span_lists.h): dq of every row, and
// the weights and score gradients of every pair, in memory. Rows, warps and copies are those of
// gather_backward.cuh; the keys of a list are in the order of its spans.
#pragma once

#include "kernels/device/span_lists.h"
#include "kernels/mma/gather_backward.cuh"
#include "kernels/mma/kept_weights.cuh"

namespace keyhole::mma {

using device::SpanLists;

// The rows of a CTA: kPairRows of a list, like GatherRows, of the heads that share it.
struct ListRows {
  int32_t batch, kv_head, first_head, heads;
  int64_t first_query;  // of the list
  int32_t first_row;    // of the CTA, counted in the list
  int32_t count;        // of the CTA

  __device__ int32_t head(int32_t row) const { return first_head + (first_row + row) % heads; }
  __device__ int64_t query(int32_t row) const { return first_query + (first_row + row) / heads; }
};
// index: of the list, in the chunk.
__device__ __forceinline__ ListRows rows_of_list(const device::Sizes& sizes, const GatherView& view,
                                                 const SpanLists& lists, int64_t index,
                                                 int32_t row_tile) {
  ListRows rows;
  const int64_t list = lists.first + index;
  const int32_t unit = int32_t(list / view.lists);
  rows.batch = unit / sizes.kv_heads;
  rows.kv_head = unit % sizes.kv_heads;
  rows.first_head = rows.kv_head * (sizes.heads / sizes.kv_heads) + lists.first_head;
  rows.heads = lists.heads;
  rows.first_query = (list - unit * view.lists) * view.rows_per_list;
  rows.first_row = row_tile * device::kPairRows;
  const int64_t queries = min(int64_t{view.rows_per_list}, sizes.q_len - rows.first_query);
  rows.count = max(0, min(int32_t(queries) * rows.heads - rows.first_row, device::kPairRows));
  return rows;
}

template <class T, class S>
__global__ void __launch_bounds__(S::threads, S::ctas_per_sm)
    gather_weights(const __grid_constant__ BackwardParams p,
                   const __grid_constant__ GatherView view,
                   const __grid_constant__ SpanLists lists) {
  static_assert(S::rows == device::kPairRows);
  extern __shared__ __align__(128) unsigned char shared[];
  const int64_t index = blockIdx.x / uint32_t(lists.row_tiles);  // of the list, in the chunk
  const int32_t row_tile = int32_t(blockIdx.x - index * lists.row_tiles);
  const ListRows rows = rows_of_list(p.sizes, view, lists, index, row_tile);
  const uint32_t members = (1u << rows.count) - 1;
  const int32_t warp = int32_t(threadIdx.x / 32);
  unsigned char* const all_slots = shared + 2 * S::rows_bytes;
  const uint32_t smem_q = smem_address(shared), smem_dout = smem_q + S::rows_bytes;
  const uint32_t slots = smem_address(all_slots) + warp * S::warp_bytes;
  constexpr uint32_t values_at = S::slots * S::slot_bytes;

  const GatheredTensor keys = gathered<T>(p.k, rows, p.sizes.head_dim);
  const GatheredTensor values = gathered<T>(p.v, rows, p.sizes.v_head_dim);
  const auto rule = GatherRule::of(device::rule_of(p.sizes));
  copy_row_members<T, S>(smem_q, p.q, p.sizes.head_dim, rows, members);
  copy_row_members<T, S>(smem_dout, p.dout, p.sizes.v_head_dim, rows, members);
  commit_copies();

  const int32_t* const list = lists.keys + index * lists.room;
  const int32_t count = __ldg(lists.begin + lists.spans * lists.chunk + index);
  const int64_t first_place = int64_t{blockIdx.x} * lists.room;
  const auto place_of = [&](uint32_t step) { return int32_t(step * S::warps + warp) * kStepKeys; };
  const auto keys_at = [&](uint32_t step) {
    const int32_t place = place_of(step) + int32_t(threadIdx.x % kStepKeys);
    return place < count ? __ldg(list + place) : -1;
  };
  const auto copy_step = [&](uint32_t slot, int32_t wanted) {
    copy_keys<S>(slot, keys, wanted);
    copy_keys<S>(slot + values_at, values, wanted);
  };
  int32_t now = keys_at(0), next = keys_at(1);
  copy_step(slots, now);
  commit_copies();
  copy_step(slots + S::slot_bytes, next);
  commit_copies();
  const RowNumbers numbers(p, rows, members);
  int32_t wanted = keys_at(2);
  await_copies<2>();
  __syncthreads();
  const RowFragments<S> queries(smem_q), douts(smem_dout);

  float dq[1][S::head_dim / 8][4] = {};
  uint32_t slot = slots;
#pragma unroll 1
  for (uint32_t step = 0; place_of(step) < count; ++step) {
    float s[1][2][4], dp[1][2][4];
    uint32_t weights[4], gradients[1][4];
    await_copies<1>();
    __syncwarp();
    multiply_by_keys<T, S>(s, queries, slot);
    multiply_by_keys<T, S>(dp, douts, slot + values_at);
    make_gradients<T>(weights, gradients[0], s[0], dp[0], rule, numbers, which_are_there(now));
    add_products<T, S>(dq, gradients, slot);
    __syncwarp();
    if (which_are_there(wanted) != 0) copy_step(slot, wanted);
    commit_copies();
    const int32_t left = count - place_of(step);
    const int64_t place = first_place + place_of(step);
    keep_weights(lists.weights + place * device::kPairBytes, left, weights);
    keep_weights(lists.gradients + place * device::kPairBytes, left, gradients[0]);

    now = next;
    next = wanted;
    wanted = keys_at(step + 3);
    slot = slot == slots ? slots + S::slot_bytes : slots;
  }
  await_copies<0>();
  __syncwarp();
  leave_products<S>(dq, reinterpret_cast<float*>(all_slots + warp * S::warp_bytes));
  __syncthreads();
#pragma unroll 1
  for (int32_t row = warp; row < rows.count; row += S::warps) {
    const device::GradientRow<T> to =
        device::gradient_row<T>(p.dq, p.sums.dq, p.found_nonfinite, p.sizes.heads, p.sizes.q_len,
                                p.sizes.head_dim, rows.batch, rows.head(row), rows.query(row));
    const float* from = reinterpret_cast<const float*>(all_slots) + row * S::result_pitch;
#pragma unroll
    for (int col = int(threadIdx.x % 32); col < S::head_dim; col += 32) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < S::warps; ++w) sum += from[w * S::warp_floats + col];
      to.put(col, sum);
    }
  }
}

template <DType kType, int kHeadDim>
void launch_gather_weights(const BackwardParams& params, const GatherView& view,
                           const SpanLists& lists, cudaStream_t stream) {
  using T = device::Storage<kType>;
  using S = GatherBackwardShape<kHeadDim, GatherCalls::all>;
  const auto kernel = gather_weights<T, S>;
  reserve_for_gather<S>(kernel);
  const int64_t ctas = lists.count * lists.row_tiles;
  kernel<<<unsigned(ctas), S::threads, S::shared_bytes, stream>>>(params, view, lists);
  check_cuda(cudaGetLastError(), "launching the weights of key lists");
}

}  // namespace keyhole::mma
