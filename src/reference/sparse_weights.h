// src/reference/sparse_weights.h
// The weights of one row by entmax and top_k: keys are sorted, lambda is bracketed. It shares no
// solver with the kernels (base/entmax.h), so that an error cannot hide in both.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "keyhole/normalizer.h"

namespace keyhole {

template <class Sum>
struct SparseWeights {
  std::vector<Sum> weight, slope;  // of each key
  Sum sink_weight = 0, sink_slope = 0;
  Sum lambda = 0;  // -inf for a row without a score above -inf
};

// x = 1 + (alpha - 1) (score - lambda), weight = x^r, slope = x^(r - 1) with r = 1 / (alpha - 1).
// The logarithm is -inf for a key without weight.
template <class Sum>
Sum log_weight(double alpha, Sum score, Sum lambda) {
  if (alpha == 1) return score - lambda;
  const Sum bend = Sum(alpha) - 1, bent = bend * (score - lambda);
  // A score at the threshold weighs nothing; lambda is known up to rounding.
  const Sum rounding = 16 * std::numeric_limits<Sum>::epsilon() *
                       (1 + bend * std::max(std::abs(score), std::abs(lambda)));
  return 1 + bent > rounding ? std::log1p(bent) / bend : -std::numeric_limits<Sum>::infinity();
}
template <class Sum>
void weigh(double alpha, Sum score, Sum lambda, Sum& weight, Sum& slope) {
  const Sum logarithm = log_weight(alpha, score, lambda);
  weight = std::exp(logarithm);
  const bool is_0 = logarithm == -std::numeric_limits<Sum>::infinity();
  slope = is_0 ? 0 : std::exp((2 - Sum(alpha)) * logarithm);  // (r - 1) / r = 2 - alpha
}

// Where a falling function that is not below 0 at `low` and below it at `high` is 0, by regula
// falsi: the line through both ends of the bracket says where to look. An end that stays counts
// half, so that both move (the Illinois rule). As close as Sum can tell, or as matters beside 1.
template <class Sum, class Function>
Sum falling_root(const Function& value_at, Sum low, Sum high) {
  const Sum close = std::numeric_limits<Sum>::epsilon() / 8;
  Sum at_low = value_at(low), at_high = value_at(high);
  if (at_low == 0) return low;
  int moved = 0;  // last: 1 low, -1 high
  while (true) {
    const Sum middle = low + (high - low) / 2;
    if (high - low <= close || middle <= low || middle >= high) return middle;
    // The step beside an end catches a root that the line sees at that end.
    const Sum beside = std::max(close, 2 * std::numeric_limits<Sum>::epsilon() * std::abs(middle));
    Sum next = low + (high - low) * (at_low / (at_low - at_high));
    next = std::min(std::max(next, low + beside), high - beside);
    if (!(next > low && next < high)) next = middle;
    const Sum value = value_at(next);
    if (value > 0) {
      low = next, at_low = value;
      if (moved > 0) at_high /= 2;
      moved = 1;
    } else {
      high = next, at_high = value;
      if (moved < 0) at_low /= 2;
      moved = -1;
    }
  }
}

// scores: of the attended keys, in ascending order of the keys. sink: one more score, which takes
// part whatever top_k is; -inf: none. A NaN or +inf makes every weight NaN.
template <class Sum>
SparseWeights<Sum> sparse_weights(const Normalizer& normalizer, const std::vector<Sum>& scores,
                                  Sum sink) {
  constexpr Sum kInfinity = std::numeric_limits<Sum>::infinity();
  const auto has_no_weights = [](Sum score) { return std::isnan(score) || score == kInfinity; };
  SparseWeights<Sum> row;
  row.weight.assign(scores.size(), 0);
  row.slope.assign(scores.size(), 0);
  if (has_no_weights(sink) || std::any_of(scores.begin(), scores.end(), has_no_weights)) {
    row.lambda = row.sink_weight = row.sink_slope = std::numeric_limits<Sum>::quiet_NaN();
    std::fill(row.weight.begin(), row.weight.end(), row.lambda);
    std::fill(row.slope.begin(), row.slope.end(), row.lambda);
    return row;
  }
  std::vector<size_t> chosen(scores.size());
  std::iota(chosen.begin(), chosen.end(), 0);
  std::sort(chosen.begin(), chosen.end(), [&](size_t a, size_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  if (normalizer.top_k > 0 && chosen.size() > size_t(normalizer.top_k)) {
    chosen.resize(size_t(normalizer.top_k));
  }
  const Sum top = std::max(sink, chosen.empty() ? -kInfinity : scores[chosen[0]]);
  if (top == -kInfinity) {
    row.lambda = -kInfinity;
    return row;
  }
  const auto excess_at = [&](Sum lambda) {
    Sum total = std::exp(log_weight(normalizer.alpha, sink, lambda));
    for (const size_t j : chosen) {
      const Sum weight = std::exp(log_weight(normalizer.alpha, scores[j], lambda));
      if (weight == 0) break;  // sorted: all others weigh nothing, too
      total += weight;
    }
    return total - 1;
  };
  row.lambda = falling_root(excess_at, top, top + std::log(Sum(chosen.size() + 1)) + 1);
  for (const size_t j : chosen) {
    weigh(normalizer.alpha, scores[j], row.lambda, row.weight[j], row.slope[j]);
  }
  weigh(normalizer.alpha, sink, row.lambda, row.sink_weight, row.sink_slope);
  return row;
}

// What a row adds to the gradient of alpha; 0 for alpha 1, where the formula is 0 / 0. dweight: the
// gradient of each weight.
template <class Sum>
Sum alpha_gradient(double alpha, const std::vector<Sum>& weight, Sum sink_weight,
                   const std::vector<Sum>& dweight, Sum delta) {
  if (alpha == 1) return 0;
  const Sum bend = Sum(alpha) - 1;
  const auto entropy_term = [](Sum p) { return p > 0 ? p * std::log(p) : Sum(0); };
  Sum mean = 0, entropy = entropy_term(sink_weight), weighted = 0;
  for (size_t j = 0; j < weight.size(); ++j) {
    mean += weight[j] * dweight[j];
    entropy += entropy_term(weight[j]);
    weighted += entropy_term(weight[j]) * dweight[j];
  }
  return (mean - delta) / (bend * bend) - (weighted - delta * entropy) / bend;
}

}  // namespace keyhole
