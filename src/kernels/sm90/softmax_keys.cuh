// src/kernels/sm90/softmax_keys.cuh
// What the backward kernel makes of a product, for softmax: the Rule of backward_keys.cuh.
#pragma once

#include "kernels/device/math.cuh"

namespace keyhole::sm90 {

// To dv, and the factor of (dout . v - delta) in ds.
struct PairTerms {
  float weight, slope;
};

// A step keeps something of each product until ds is computed: the weight or, with a softcap, the
// bent product, from which weight and slope follow. There are no registers for both.
//   kPacksAtOnce      weight and slope follow from what is kept, and are packed together
//   kMeetsRowLate     the row's number and the mask are applied only then
//   kSparesRegisters  waits may pause between polls, and thread numbers are asked for anew: else
//                     ptxas spills
//   kChecksSums       sums that are not finite count as found
template <Bend kBend>
struct SoftmaxKeys {
  using Numbers = RuleNumbers<float>;
  static constexpr bool kPacksAtOnce = kBend == Bend::softcap, kMeetsRowLate = kPacksAtOnce;
  static constexpr bool kSparesRegisters = false, kChecksSums = false;
  using Rule = SoftmaxRule<device::FastMath, kBend>;
  const Rule rule;

  __device__ __forceinline__ explicit SoftmaxKeys(const Numbers& numbers) : rule{numbers} {}

  __device__ __forceinline__ float keep(float product) const { return rule.bend(product); }
  __device__ __forceinline__ float keep(float product, float lse2) const {
    return rule.weight_of_bent(product, -lse2);
  }
  __device__ __forceinline__ float slope(float weight) const { return rule.slope(weight); }
  __device__ __forceinline__ PairTerms terms(float bent, float lse2) const {
    const float weight = rule.weight_of_bent(bent, -lse2);
    return {weight, rule.slope(weight) * device::FastMath::one_minus_square(bent)};
  }
};

}  // namespace keyhole::sm90
