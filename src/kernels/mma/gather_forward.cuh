// src/kernels/mma/gather_forward.cuh
// Attention over lists of keys, on tensor cores. The rows of the products are the query heads of
// one kv head (gather_rows.cuh). The warps of a CTA share the list, 16 keys at a time. Each has its
// own copies in flight and its own softmax; they meet once, at the end:
//
//   step i of a warp   await keys i      s = q . k          copy keys i + 2 in their place
//                      p = 2^(s - base)
//                      await values i    out += p . v       copy values i + 2 in their place
//
// The row maximum ("base") is guessed, as in sm80/forward_steps.cuh: a row keeps it until the
// weights of a step exceed the limit of the storage type.
#pragma once

#include "kernels/device/exact_forward.cuh"
#include "kernels/device/pair_gradient.cuh"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_launch.h"
#include "kernels/mma/gather_products.cuh"
#include "kernels/mma/gather_rows.cuh"

namespace keyhole::mma {

// Turns products into base-2 scores. Missing keys are replaced by selection, whatever was computed.
template <int kBlocks, class Rule>
__device__ __forceinline__ void make_scores(float (&s)[kBlocks][2][4], const Rule& rule,
                                            uint32_t there) {
  const bool is_whole = there == (1u << kStepKeys) - 1;
  const uint32_t mine = there >> (2 * (threadIdx.x % 4));
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[b][n][i];
        x = rule.score(rule.bend(x));
        if (!is_whole && (mine >> (8 * n + i % 2) & 1) == 0) x = -INFINITY;
      }
    }
  }
}

// A warp's accumulators, laid out like the scores: out not yet divided, with columns instead of
// keys. A sum covers only the lane's keys.
template <class T, class S>
struct GatherSoftmax {
  float out[S::blocks][S::head_dim / 8][4];
  float sum[S::blocks][2], base[S::blocks][2];  // base -inf: every score so far was -inf

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int b = 0; b < S::blocks; ++b) {
#pragma unroll
      for (int n = 0; n < S::head_dim / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[b][n][i] = 0;
      }
      sum[b][0] = sum[b][1] = 0;
      base[b][0] = base[b][1] = -INFINITY;
    }
  }

  // Scores in, weights out, packed as the next product reads them.
  __device__ __forceinline__ void weigh(const float (&s)[S::blocks][2][4],
                                        uint32_t (&weights)[S::blocks][4]) {
    float p[S::blocks][2][4], total[S::blocks][2];
    const auto make_weights = [&](const float(&subtracted)[S::blocks][2]) {
#pragma unroll
      for (int b = 0; b < S::blocks; ++b) {
        total[b][0] = total[b][1] = 0;
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            p[b][n][i] = exp2_fast(s[b][n][i] - subtracted[b][i / 2]);
            total[b][i / 2] += p[b][n][i];
          }
        }
      }
    };
    make_weights(base);
    bool is_within = true;  // false for NaN too: -inf minus a base of -inf
#pragma unroll
    for (int b = 0; b < S::blocks; ++b) {
      is_within &= total[b][0] <= Element<T>::max_probability;
      is_within &= total[b][1] <= Element<T>::max_probability;
    }
    if (!__all_sync(~0u, is_within)) {
      float subtracted[S::blocks][2];
      raise_base(s, total, subtracted);
      make_weights(subtracted);
    }
#pragma unroll
    for (int b = 0; b < S::blocks; ++b) {
      sum[b][0] += total[b][0];
      sum[b][1] += total[b][1];
      pack_weights<T>(weights[b], p[b]);
    }
  }

  // Only for the rows whose totals exceed the limit. Others keep their base, so that the bits of a
  // row do not depend on its neighbours. If the largest score is not finite nothing is subtracted:
  // the result then shows that the row must be recomputed.
  __device__ __forceinline__ void raise_base(const float (&s)[S::blocks][2][4],
                                             const float (&total)[S::blocks][2],
                                             float (&subtracted)[S::blocks][2]) {
    const uint32_t row_lanes = 0xfu << (threadIdx.x % 32 & ~3u);  // the four that share a row
#pragma unroll
    for (int b = 0; b < S::blocks; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = -INFINITY;  // skips NaN, which the sum still shows
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          top = fmaxf(top, fmaxf(s[b][n][2 * half], s[b][n][2 * half + 1]));
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const uint32_t within = __ballot_sync(~0u, total[b][half] <= Element<T>::max_probability);
        const float old_base = base[b][half];
        base[b][half] = (within & row_lanes) == row_lanes ? old_base : fmaxf(old_base, top);
        subtracted[b][half] = device::is_finite(base[b][half]) ? base[b][half] : 0;
        const float shrink = exp2_fast(old_base - subtracted[b][half]);
        sum[b][half] *= shrink;
#pragma unroll
        for (int n = 0; n < S::head_dim / 8; ++n) {
          out[b][n][2 * half] *= shrink;
          out[b][n][2 * half + 1] *= shrink;
        }
      }
    }
  }
};

// Processes this warp's keys of a list. slots: its own shared memory. await_rows() is called once,
// before the rows are read, with at most 4 younger groups of copies in flight.
template <class T, class S, class Rule, class AwaitRows>
__device__ __forceinline__ void follow_keys(GatherSoftmax<T, S>& softmax, const KeyList& list,
                                            const GatheredTensor& keys,
                                            const GatheredTensor& values, const Rule& rule,
                                            uint32_t smem_rows, uint32_t slots,
                                            AwaitRows await_rows) {
  constexpr uint32_t values_at = S::slots * S::slot_bytes;
  int32_t ahead[S::slots];
#pragma unroll
  for (int step = 0; step < S::slots; ++step) ahead[step] = keys_of_step<S>(list, step);
#pragma unroll
  for (int step = 0; step < S::slots; ++step) {
    copy_keys<S>(slots + step * S::slot_bytes, keys, ahead[step]);
    commit_copies();
    copy_keys<S>(slots + values_at + step * S::slot_bytes, values, ahead[step]);
    commit_copies();
  }
  uint32_t there = which_are_there(ahead[0]), there_next = which_are_there(ahead[1]);
  int32_t wanted = keys_of_step<S>(list, S::slots);
  await_rows();
  const RowFragments<S> rows(smem_rows);

  uint32_t slot = slots;
#pragma unroll 1
  for (uint32_t step = S::slots; has_step<S>(list, step - S::slots); ++step) {
    // Not before they are needed: the keys are still on their way.
    uint32_t there_then;
    const auto copy_then = [&](uint32_t to, const GatheredTensor& from) {
      if (there_then != 0) copy_keys<S>(to, from, wanted);
      commit_copies();
    };
    if (there == 0) {  // all padding
      await_copies<2 * S::slots - 2>();
      there_then = which_are_there(wanted);
      copy_then(slot, keys);
      copy_then(slot + values_at, values);
    } else {
      float s[S::blocks][2][4];
      await_copies<2 * S::slots - 1>();
      __syncwarp();
      multiply_by_keys<T, S>(s, rows, slot);
      there_then = which_are_there(wanted);  // and all lanes have read the keys
      copy_then(slot, keys);

      uint32_t weights[S::blocks][4];
      make_scores(s, rule, there);
      softmax.weigh(s, weights);

      await_copies<2 * S::slots - 1>();
      __syncwarp();
      add_products<T, S>(softmax.out, weights, slot + values_at);
      __syncwarp();
      copy_then(slot + values_at, values);
    }
    wanted = keys_of_step<S>(list, step + 1);
    there = there_next;
    there_next = there_then;
    slot = slot == slots ? slots + S::slot_bytes : slots;
  }
  await_copies<0>();
  __syncwarp();
}

// The results of all warps for the rows of a CTA.
template <class S>
struct GatherResults {
  float max[S::warps][S::rows], sum[S::warps][S::rows];
};

template <class T, class S>
__device__ __forceinline__ void leave_result(const GatherSoftmax<T, S>& softmax, float* out,
                                             GatherResults<S>& results) {
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
#pragma unroll
  for (int b = 0; b < S::blocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * b + 8 * half + lane / 4;
      float sum = softmax.sum[b][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      results.max[warp][row] = softmax.base[b][half];
      results.sum[warp][row] = sum;
    }
  }
  leave_products<S>(softmax.out, out);
}

// Combines what the warps found for one row, in warp order, and stores it. out: the first warp's;
// that of the next warp is S::warp_bytes further.
template <class T, class S>
__device__ __forceinline__ void store_row(const GatherForwardParams& p, int32_t head_index,
                                          int64_t query, int32_t row, const float* out,
                                          const GatherResults<S>& results) {
  const int lane = int(threadIdx.x % 32);
  float top = -INFINITY, sum = 0, share[S::warps];
#pragma unroll
  for (int w = 0; w < S::warps; ++w) top = fmaxf(top, results.max[w][row]);
#pragma unroll
  for (int w = 0; w < S::warps; ++w) {
    share[w] = device::weight_against(results.max[w][row], top);
    sum += share[w] * results.sum[w][row];
  }
  const device::RowFinish finish = device::finish_row(p, head_index, query, top, sum);
  const device::RowTarget<T> target = device::row_target<T>(p, head_index, query, finish);

  constexpr int kFours = (S::head_dim + 127) / 128;
  const int32_t cols = p.sizes.v_head_dim;
  float values[kFours][4];
  float not_finite = 0;  // NaN when any value is infinite or NaN
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int col = 4 * lane + 128 * i;
#pragma unroll
    for (int x = 0; x < 4; ++x) values[i][x] = 0;
    if (col >= cols) continue;
#pragma unroll
    for (int w = 0; w < S::warps; ++w) {
      const float4 four =
          *reinterpret_cast<const float4*>(out + w * S::warp_floats + row * S::result_pitch + col);
      values[i][0] += share[w] * four.x;
      values[i][1] += share[w] * four.y;
      values[i][2] += share[w] * four.z;
      values[i][3] += share[w] * four.w;
    }
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      values[i][x] = target.value(col + x, values[i][x]);
      not_finite = fmaf(values[i][x], 0.f, not_finite);
    }
  }
  const bool is_bad = !(finish.lse2 < INFINITY) || not_finite != 0;
  if (__any_sync(~0u, is_bad)) return device::recompute_gathered_row<T>(p, head_index, query);
  if (lane == 0) device::store_lse(p, head_index, query, finish.lse2);
#pragma unroll
  for (int i = 0; i < kFours; ++i) target.store_four(4 * lane + 128 * i, cols, values[i], true);
}

template <class T, class S>
__global__ void __launch_bounds__(S::threads, S::ctas_per_sm)
    gather_forward(const __grid_constant__ GatherForwardParams p) {
  using Rule =
      SoftmaxRule<device::CarefulMath, S::calls == GatherCalls::plain ? Bend::none : Bend::either>;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ GatherResults<S> results;
  const GatherRows rows = my_gather_rows<S::rows>(p.sizes, p.view);
  const int32_t warp = int32_t(threadIdx.x / 32);
  unsigned char* const slots = shared + S::rows_bytes;

  for_each_group(p.sizes, p.view, rows, [&](int32_t group, uint32_t members) {
    const uint32_t smem_rows = smem_address(shared);
    copy_row_members<T, S>(smem_rows, p.q, p.sizes.head_dim, rows, members);
    commit_copies();
    GatherSoftmax<T, S> softmax;
    softmax.clear();
    follow_keys<T, S>(softmax, device::key_list(p.view, group, rows.list),
                      gathered<T>(p.k, rows, p.sizes.head_dim),
                      gathered<T>(p.v, rows, p.sizes.v_head_dim),
                      Rule::of(device::rule_of(p.sizes)), smem_rows,
                      smem_address(slots) + warp * S::warp_bytes, [] {
                        await_copies<2 * S::slots>();
                        __syncthreads();
                      });
    leave_result<T, S>(softmax, reinterpret_cast<float*>(slots + warp * S::warp_bytes), results);
    __syncthreads();
#pragma unroll 1
    for (int32_t row = warp; row < S::rows; row += S::warps) {
      if ((members >> row & 1) == 0) continue;
      store_row<T, S>(p, rows.batch * p.sizes.heads + rows.head(row), rows.query(row), row,
                      reinterpret_cast<const float*>(slots), results);
    }
  });
}

template <class T, int kHeadDim, int kBlocks>
void launch_gather_forward_of(const GatherForwardParams& p, cudaStream_t stream) {
  if (is_plain(p, p.view)) {
    using S = GatherForwardShape<kHeadDim, kBlocks, GatherCalls::plain>;
    launch_gather<S>(gather_forward<T, S>, p.sizes, p.view, stream, p);
  } else {
    using S = GatherForwardShape<kHeadDim, kBlocks, GatherCalls::all>;
    launch_gather<S>(gather_forward<T, S>, p.sizes, p.view, stream, p);
  }
}

template <DType kType, int kHeadDim>
void launch_gather_forward(const GatherForwardParams& params, cudaStream_t stream) {
  using T = device::Storage<kType>;
  constexpr int most = kMostGatherBlocks<kHeadDim>;
  if (rows_per_list(params.sizes, params.view) > 16) {
    launch_gather_forward_of<T, kHeadDim, most>(params, stream);
  } else {
    launch_gather_forward_of<T, kHeadDim, 1>(params, stream);
  }
}

}  // namespace keyhole::mma
