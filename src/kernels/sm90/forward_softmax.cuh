// src/kernels/sm90/forward_softmax.cuh
// From scores to weights, for the part of a tile that one thread holds: rows r and r + 8 of its
// warp's 16. Element 4 * j + 2 * h + e of an accumulator is in row h, so i / 2 % 2 is the row of
// element i.
//
// The row maximum is guessed. A row keeps the maximum of its first tile as long as no weight
// 2^(score - row_max) exceeds a limit; out is divided by the sum of weights in any case. That sum
// is needed anyway and is larger than each of its terms, so it shows when the guess was wrong. Then
// the warp raises row_max and computes the tile's weights again.
//
// The common tile therefore needs no maximum, no exchange between lanes and no rescaling. In return
// the scores must be kept until the weights are accepted, so weights have registers of their own.
#pragma once

#include <cfloat>

#include "kernels/device/signed_rule.cuh"
#include "kernels/sm90/ptx.cuh"

namespace keyhole::sm90 {

template <class T>
struct Weight;
template <>
struct Weight<__nv_bfloat16> {
  static constexpr float limit =
      16777216;  // 2^24: within the range of fp32, with headroom for sums
};
template <>
struct Weight<__half> {
  static constexpr float limit = 32768;  // 2^15: the largest power of two in fp16
};

// What consumers need of a call, beside its tensors.
template <Bend kBend>
struct CallRule {
  SoftmaxRule<device::FastMath, kBend> rule;  // with the magnitude of the scale
  int32_t sign;                               // of the scale (device/signed_rule.cuh)
};
template <Bend kBend>
CallRule<kBend> call_rule(const device::Sizes& sizes) {
  return {device::rule_of_magnitude<SoftmaxRule<device::FastMath, kBend>>(sizes),
          device::sign_of_scale(sizes)};
}

// Applies the softcap to the products; without one they stay as they are.
template <Bend kBend, int kCount>
__device__ __forceinline__ void bend_products(float (&products)[kCount],
                                              const CallRule<kBend>& call) {
  if constexpr (kBend == Bend::softcap) {
#pragma unroll
    for (float& product : products) product = call.rule.bend(product);
  }
}

// The two rows of a thread. A sum covers only the thread's own columns: the four lanes that share a
// row add theirs up at the end.
struct Rows {
  // FLT_MAX: the row has not attended to anything yet. Any score then exceeds the limit.
  float minus_row_max[2];
  float sum[2];
};

// The factor for what each row has accumulated so far, after row_max was raised.
struct Rescale {
  float of_row[2];
};

// Raises row_max to the largest score of each row in this tile, unless it is higher already.
template <Bend kBend, int kCount>
__device__ __forceinline__ Rescale raise_row_max(Rows& rows, const float (&scores)[kCount],
                                                 const CallRule<kBend>& call) {
  Rescale rescale;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top[2] = {scores[2 * h], scores[2 * h + 1]};  // skips NaN, which the sum still shows
#pragma unroll
    for (int i = 4 + 2 * h; i < kCount; i += 4) {
      top[0] = fmaxf(top[0], scores[i]);
      top[1] = fmaxf(top[1], scores[i + 1]);
    }
    float of_row = fmaxf(top[0], top[1]);
    of_row = fmaxf(of_row, __shfl_xor_sync(~0u, of_row, 1));
    of_row = fmaxf(of_row, __shfl_xor_sync(~0u, of_row, 2));
    const float old_max = -rows.minus_row_max[h], base = fmaxf(old_max, call.rule.score(of_row));
    rescale.of_row[h] = device::exp2_fast(old_max - base);
    rows.minus_row_max[h] = -base;
  }
  return rescale;
}

// Weights, packed as the operand of the next product, and their sums.
template <class T, Bend kBend, int kCount>
__device__ __forceinline__ void make_weights(uint32_t (&weights)[kCount / 8][4], float (&sum)[2],
                                             const float (&scores)[kCount], const Rows& rows,
                                             const CallRule<kBend>& call) {
  float part[2][2] = {};
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const int h = i % 2;
    const float x = call.rule.weight_of_bent(scores[2 * i], rows.minus_row_max[h]);
    const float y = call.rule.weight_of_bent(scores[2 * i + 1], rows.minus_row_max[h]);
    part[h][0] += x;
    part[h][1] += y;
    weights[i / 4][i % 4] = device::pack_two<T>(x, y);
  }
  sum[0] = part[0][0] + part[0][1];
  sum[1] = part[1][0] + part[1][1];
}

// Whether row_max of any row in this warp is too low for these sums. Then it is raised, the weights
// are computed again, and what was accumulated before is rescaled.
template <class T>
__device__ __forceinline__ bool is_guess_wrong(const float (&sum)[2]) {
  return __any_sync(~0u, sum[0] > Weight<T>::limit || sum[1] > Weight<T>::limit);
}

}  // namespace keyhole::sm90
