// src/kernels/sm90/forward_softmax.cuh
// From scores to weights: what a thread does with its share of a tile, rows r and r + 8 of its
// warp's 16. Element 4 * j + 2 * h + e of a sum is row h, so that i / 2 % 2 is the row of element
// i.
//
// The maximum is guessed: a row keeps the base it got from its first keys for as long as no weight
// 2^(score - base) passes a limit; out is divided by the sum of weights in any case. The sum, which
// is needed anyway and is larger than each of its terms, tells when the guess was wrong: then the
// warp raises the base and makes the tile's weights again. So the common tile has no maximum, no
// exchange between lanes and no rescaling, and the scores must be kept until the weights are
// accepted: weights are made in registers of their own.
#pragma once

#include <cfloat>

#include "kernels/device/signed_rule.cuh"
#include "kernels/sm90/ptx.cuh"

namespace keyhole::sm90 {

template <class T>
struct Weight;
template <>
struct Weight<__nv_bfloat16> {
  static constexpr float limit = 16777216;  // 2^24: the range of fp32, with room for sums
};
template <>
struct Weight<__half> {
  static constexpr float limit = 32768;  // 2^15: the largest power of two of an fp16
};

// What consumers need of a call, beside its tensors.
template <Bend kBend>
struct CallRule {
  SoftmaxRule<device::FastMath, kBend> rule;  // by the magnitude of the scale
  int32_t sign;                               // of the scale (device/signed_rule.cuh)
};
template <Bend kBend>
CallRule<kBend> call_rule(const device::Sizes& sizes) {
  return {device::rule_of_magnitude<SoftmaxRule<device::FastMath, kBend>>(sizes),
          device::sign_of_scale(sizes)};
}

// Products become bent ones, which a rule without a softcap leaves as they are.
template <Bend kBend, int kCount>
__device__ __forceinline__ void bend_products(float (&products)[kCount],
                                              const CallRule<kBend>& call) {
  if constexpr (kBend == Bend::softcap) {
#pragma unroll
    for (float& product : products) product = call.rule.bend(product);
  }
}

// The two rows of a thread. Sums are of the thread's own columns: the four lanes that share a row
// add theirs up at the end.
struct Rows {
  // FLT_MAX: the row has not attended to anything yet. Any score then passes the limit.
  float minus_row_max[2];
  float sum[2];
};

// What a raised base does to what was added up before: a factor for each row.
struct Rescale {
  float of_row[2];
};

// The largest score of each row in this tile becomes its base, unless that is higher already.
template <Bend kBend, int kCount>
__device__ __forceinline__ Rescale raise_row_max(Rows& rows, const float (&scores)[kCount],
                                                 const CallRule<kBend>& call) {
  Rescale rescale;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top[2] = {scores[2 * h], scores[2 * h + 1]};  // passes over NaN, which stays in the sum
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

// Weights as the next product reads them, and their sums.
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

// Whether a base of this warp's rows is too low for these sums of weights: then it is raised, the
// weights are made again, and what was added up before shrinks.
template <class T>
__device__ __forceinline__ bool is_guess_wrong(const float (&sum)[2]) {
  return __any_sync(~0u, sum[0] > Weight<T>::limit || sum[1] > Weight<T>::limit);
}

// so_far + 0 x: NaN in either half for good, once x is infinite or NaN there.
template <class T>
__device__ __forceinline__ uint32_t add_zero_times(uint32_t two, uint32_t so_far) {
  uint32_t sum;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(two), "r"(0), "r"(so_far));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(two), "r"(0), "r"(so_far));
  }
  return sum;
}

}  // namespace keyhole::sm90
