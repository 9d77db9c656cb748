// src/kernels/device/signed_rule.cuh
// The weight rule of tensor-core kernels. It uses the magnitude of the scale, so that the factor of
// scores is positive and -inf stays -inf. If the sign is not 1, the queries are multiplied by it
// (-1, 0 or 1): 0 x NaN and the sign of infinity then follow the definition.
#pragma once

#include <cmath>

#include "kernels/device/pair_gradient.cuh"

namespace keyhole::device {

inline int32_t sign_of_scale(const Sizes& sizes) { return (sizes.scale > 0) - (sizes.scale < 0); }

template <class Rule>
Rule rule_of_magnitude(const Sizes& sizes) {
  WeightRule rule = rule_of(sizes);
  rule.scale = std::fabs(rule.scale);
  if (rule.scale == 0) rule = {};  // the queries become 0: every score is 0, with any factor
  return Rule::of(rule);
}

}  // namespace keyhole::device
