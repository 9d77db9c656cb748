// src/kernels/device/signed_rule.cuh
// The weight rule of kernels on tensor cores: by the magnitude of the scale, so that the factor of
// scores is positive and -inf stays -inf. The queries are multiplied with its sign, -1, 0 or 1,
// where that is not 1: 0 x NaN and the sign of infinity follow the definition.
#pragma once

#include <cmath>

#include "kernels/device/pair_gradient.cuh"

namespace keyhole::device {

inline int32_t sign_of_scale(const Sizes& sizes) { return (sizes.scale > 0) - (sizes.scale < 0); }

template <class Rule>
Rule rule_of_magnitude(const Sizes& sizes) {
  WeightRule rule = rule_of(sizes);
  rule.scale = std::fabs(rule.scale);
  if (rule.scale == 0) rule = {};  // of queries that are 0: every score is 0, by any factor
  return Rule::of(rule);
}

}  // namespace keyhole::device
