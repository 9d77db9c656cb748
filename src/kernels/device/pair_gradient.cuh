// src/kernels/device/pair_gradient.cuh
// What one attended pair gives to the gradients, from its two products q . k and dout . v.
#pragma once

#include "kernels/device/params.h"

namespace keyhole::device {

// The way from q . k to a base-2 score and its slope, in the few numbers that a loop keeps.
struct ScoreRule {
  float factor;  // q . k -> base-2 score or, with a softcap, what tanh takes
  float cap2;    // softcap * log2(e); 0: none
  float scale;
};
__device__ inline ScoreRule score_rule(const Sizes& sizes) {
  constexpr double kLog2EInFull = 1.4426950408889634;
  const double scale = sizes.scale, cap = sizes.softcap;
  return {float(cap > 0 ? scale / cap : scale * kLog2EInFull), float(cap * kLog2EInFull),
          sizes.scale};
}

struct PairGradient {
  float p;   // to dv
  float ds;  // to dq and dk
};
// dp: dout . v - delta
__device__ inline PairGradient pair_gradient(const ScoreRule& rule, float product, float dp,
                                             float lse2) {
  if (rule.cap2 == 0) {
    const float p = exp2f(product * rule.factor - lse2);
    return {p, p * dp * rule.scale};
  }
  const float bent = tanhf(product * rule.factor);
  const float p = exp2f(rule.cap2 * bent - lse2);
  return {p, p * dp * (rule.scale * (1 - bent * bent))};
}

}  // namespace keyhole::device
