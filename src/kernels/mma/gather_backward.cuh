// src/kernels/mma/gather_backward.cuh
// Gradients over lists of keys, on tensor cores. Rows, warps and copies are those of the forward
// pass (gather_forward.cuh). dq stays in registers until the list ends. dk and dv are added to sums
// in global memory after each product over 16 rows.
//
//   step of a warp     s = q . k     dp = dout . v      p, ds of 16 rows x 16 keys
//                      dq += ds . k                     16 more keys and values begin to arrive
//                      dv(keys) += p^T . dout           dk(keys) += ds^T . q
#pragma once

#include "kernels/device/pair_gradient.cuh"
#include "kernels/device/rows.cuh"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_launch.h"
#include "kernels/mma/gather_products.cuh"
#include "kernels/mma/gather_rows.cuh"
#include "kernels/mma/gather_scatter.cuh"
#include "kernels/mma/ptx.cuh"

namespace keyhole::mma {

using device::BackwardParams;

// What the gradients need of a lane's two rows. A row outside the list's members has weight 0.
struct RowNumbers {
  float lse2[2] = {INFINITY, INFINITY}, delta[2] = {0, 0};

  template <class Rows>
  __device__ __forceinline__ RowNumbers(const BackwardParams& p, const Rows& rows,
                                        uint32_t members) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = int32_t(threadIdx.x % 32) / 4 + 8 * half;
      if ((members >> row & 1) == 0) continue;
      const int64_t head_index = rows.batch * p.sizes.heads + rows.head(row);
      const int64_t place = head_index * p.sizes.q_len + rows.query(row);
      lse2[half] = p.lse2[place];
      delta[half] = p.delta[place];
    }
  }
};

// Not for calls with a softcap (gather_launch.h).
using GatherRule = SoftmaxRule<device::CarefulMath, Bend::none>;

// Weights and score gradients of 16 rows by 16 keys from their products, packed.
template <class T>
__device__ __forceinline__ void make_gradients(uint32_t (&p)[4], uint32_t (&ds)[4],
                                               const float (&s)[2][4], const float (&dp)[2][4],
                                               const GatherRule& rule, const RowNumbers& numbers,
                                               uint32_t there) {
  const uint32_t mine = there >> (2 * (threadIdx.x % 4));
  float weight[2][4], gradient[2][4];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const device::PairGradient pair = device::pair_gradient(
          rule, s[n][i], dp[n][i] - numbers.delta[i / 2], numbers.lse2[i / 2]);
      const bool is_there = (mine >> (8 * n + i % 2) & 1) != 0;
      weight[n][i] = is_there ? pair.p : 0;
      gradient[n][i] = is_there ? pair.ds : 0;
    }
  }
  pack_weights<T>(p, weight);
  pack_weights<T>(ds, gradient);
}

template <class T, class S>
__global__ void __launch_bounds__(S::threads, S::ctas_per_sm)
    gather_backward(const __grid_constant__ BackwardParams p,
                    const __grid_constant__ GatherView view) {
  extern __shared__ __align__(128) unsigned char shared[];
  const GatherRows rows = my_gather_rows<S::rows>(p.sizes, view);
  const int32_t warp = int32_t(threadIdx.x / 32);
  unsigned char* const all_slots = shared + 2 * S::rows_bytes;
  const uint32_t smem_q = smem_address(shared), smem_dout = smem_q + S::rows_bytes;
  const uint32_t slots = smem_address(all_slots) + warp * S::warp_bytes;
  constexpr uint32_t values_at = S::slots * S::slot_bytes;

  const GatheredTensor keys = gathered<T>(p.k, rows, p.sizes.head_dim);
  const GatheredTensor values = gathered<T>(p.v, rows, p.sizes.v_head_dim);
  const int64_t first_key = (int64_t{rows.batch} * p.sizes.kv_heads + rows.kv_head) * p.sizes.k_len;
  const ScatteredSums dk = {p.sums.dk + first_key * p.sizes.head_dim, p.sizes.head_dim};
  const ScatteredSums dv = {p.sums.dv + first_key * p.sizes.v_head_dim, p.sizes.v_head_dim};
  const auto rule = GatherRule::of(device::rule_of(p.sizes));

  for_each_group(p.sizes, view, rows, [&](int32_t group, uint32_t members) {
    copy_row_members<T, S>(smem_q, p.q, p.sizes.head_dim, rows, members);
    copy_row_members<T, S>(smem_dout, p.dout, p.sizes.v_head_dim, rows, members);
    commit_copies();
    const KeyList list = device::key_list(view, group, rows.list);
    const auto copy_step = [&](uint32_t slot, int32_t wanted) {
      copy_keys<S>(slot, keys, wanted);
      copy_keys<S>(slot + values_at, values, wanted);
    };
    int32_t now = keys_of_step<S>(list, 0), next = keys_of_step<S>(list, 1);
    copy_step(slots, now);
    commit_copies();
    copy_step(slots + S::slot_bytes, next);
    commit_copies();
    const RowNumbers numbers(p, rows, members);
    int32_t wanted = keys_of_step<S>(list, 2);
    await_copies<2>();
    __syncthreads();
    const RowFragments<S> queries(smem_q), douts(smem_dout);

    float dq[1][S::head_dim / 8][4] = {};
    uint32_t slot = slots;
#pragma unroll 1
    for (uint32_t step = 3; has_step<S>(list, step - 3); ++step) {
      const uint32_t there = which_are_there(now);
      float s[1][2][4], dp[1][2][4];
      uint32_t weights[4], gradients[1][4];
      await_copies<1>();
      __syncwarp();
      if (there != 0) {  // otherwise the step is all padding
        multiply_by_keys<T, S>(s, queries, slot);
        multiply_by_keys<T, S>(dp, douts, slot + values_at);
        make_gradients<T>(weights, gradients[0], s[0], dp[0], rule, numbers, there);
        add_products<T, S>(dq, gradients, slot);
      }
      __syncwarp();
      if (which_are_there(wanted) != 0) copy_step(slot, wanted);
      commit_copies();
      if (there != 0) {
        scatter<T, S>(dv, now, weights, smem_dout);
        scatter<T, S>(dk, now, gradients[0], smem_q);
      }

      now = next;
      next = wanted;
      wanted = keys_of_step<S>(list, step);
      slot = slot == slots ? slots + S::slot_bytes : slots;
    }
    await_copies<0>();
    __syncwarp();
    leave_products<S>(dq, reinterpret_cast<float*>(all_slots + warp * S::warp_bytes));
    __syncthreads();
#pragma unroll 1
    for (int32_t row = warp; row < S::rows; row += S::warps) {
      if ((members >> row & 1) == 0) continue;
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
  });
}

template <DType kType, int kHeadDim>
void launch_gather_backward(const BackwardParams& params, const GatherView& view,
                            cudaStream_t stream) {
  using T = device::Storage<kType>;
  if (is_plain(params, view)) {
    using S = GatherBackwardShape<kHeadDim, GatherCalls::plain>;
    launch_gather<S>(gather_backward<T, S>, params.sizes, view, stream, params, view);
  } else {
    using S = GatherBackwardShape<kHeadDim, GatherCalls::all>;
    launch_gather<S>(gather_backward<T, S>, params.sizes, view, stream, params, view);
  }
}

}  // namespace keyhole::mma
