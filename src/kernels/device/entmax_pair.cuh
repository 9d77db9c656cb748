// src/kernels/device/entmax_pair.cuh
// Weight, slope and steepness of a pair of entmax or top_k, from its product q . k and the row's
// lambda, in fp32. And the gradient of the row's scores: delta.
#pragma once

#include "kernels/device/entmax_backward_params.h"
#include "kernels/device/last_rank.cuh"
#include "kernels/device/pair_gradient.cuh"

namespace keyhole::device {

// Scores in base e, as lambda is.
struct NaturalCarefulMath : PlainArithmetic<float> {
  static constexpr double kLogE = 1, kTanhScale = 1;
  // Rounded, never part of a multiply-add: all launches must get the same score for a pair.
  static __device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
  static __device__ __forceinline__ float power(float x) { return expf(x); }
  static __device__ __forceinline__ float tanh(float x) { return tanhf(x); }
};

struct EntmaxPairRule {
  SoftmaxRule<NaturalCarefulMath> scores;
  EntmaxRule<EntmaxMath<float>> weights;

  static __device__ EntmaxPairRule of(const EntmaxBackwardParams& p) {
    return {SoftmaxRule<NaturalCarefulMath>::of(rule_of(p.sizes)),
            EntmaxRule<EntmaxMath<float>>::of(p.power)};
  }
  __device__ __forceinline__ float score(float product) const {
    return scores.score(scores.bend(product));
  }
  __device__ __forceinline__ float steepness(float product) const {
    return scores.steepness(scores.bend(product));
  }
  __device__ __forceinline__ EntmaxTerms<float> terms(float distance) const {
    return weights.terms(distance);
  }
  // Of the sink of a head; 0 without one.
  __device__ EntmaxTerms<float> sink_terms(const EntmaxBackwardParams& p, int32_t head,
                                           float lambda) const {
    if (p.sink == nullptr) return {0, 0};
    return terms(p.sink[head * p.sink_stride] - lambda);
  }
};

// Whether the support of a row says which keys have weight. Not for a row with a NaN: all its keys
// have one, and not for a row without weights, whose lambda is -inf.
__device__ __forceinline__ bool is_usable(int32_t first_of_support, float lambda) {
  return first_of_support != kLongSupport && is_finite(lambda);
}

// Weight and slope of a pair of a row without a usable support. A NaN of the row reaches all its
// keys.
__device__ __forceinline__ EntmaxTerms<float> terms_of(const EntmaxPairRule& rule, float product,
                                                       float lambda, int32_t key,
                                                       const LastRank& last) {
  if (isnan(lambda)) return {lambda, lambda};
  if (lambda == -INFINITY) return {0, 0};  // no key has weight
  const float score = rule.score(product);
  const uint64_t rank = rank_of(score, key);
  if (rank > last.rank) return {0, 0};
  const EntmaxTerms<float> terms = rule.terms(score - lambda);
  const float share = rank == last.rank ? last.share : 1.f;
  return {share * terms.weight, share * terms.slope};
}

// slope_times_dvalue: the sum of slope * (dout . v); slopes: with the sink's.
__device__ __forceinline__ float delta_of_row(const EntmaxBackwardParams& p, int32_t batch,
                                              int32_t head, int64_t query, float slope_times_dvalue,
                                              float slopes) {
  const float dlse = p.dlse.data == nullptr ? 0.f : *p.dlse.row<const float>(batch, head, query);
  return slopes == 0 ? 0.f : (slope_times_dvalue - dlse) / slopes;
}

// d loss / d (q . k). A slope of 0 leaves the pair out, whatever the value of the key is.
__device__ __forceinline__ float dscore_of(float slope, float dvalue, float delta,
                                           float steepness) {
  return slope == 0 ? 0.f : slope * (dvalue - delta) * steepness;
}

}  // namespace keyhole::device
