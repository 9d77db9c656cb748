// src/kernels/device/pair_gradient.cuh
// The contribution of one attended pair to the gradients, from its products q . k and dout . v.
#pragma once

#include "kernels/device/math.cuh"
#include "kernels/device/params.h"

namespace keyhole::device {

using CarefulRule = SoftmaxRule<CarefulMath>;

__host__ __device__ inline WeightRule rule_of(const Sizes& sizes) {
  return {{}, sizes.scale, sizes.softcap};
}

struct PairGradient {
  float p;   // to dv
  float ds;  // to dq and dk
};
// dp: dout . v - delta
template <class Rule>
__device__ __forceinline__ PairGradient pair_gradient(const Rule& rule, float product, float dp,
                                                      float lse2) {
  const float bent = rule.bend(product), p = rule.weight(rule.score(bent), lse2);
  return {p, rule.slope(p) * dp * rule.steepness(bent)};
}

}  // namespace keyhole::device
