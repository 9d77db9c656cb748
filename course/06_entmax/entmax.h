// course/06_entmax/entmax.h
// alpha-entmax of one row of scores, in double precision: what the programs of this chapter share.
//
//   r = 1 / (alpha - 1)     z = (alpha - 1) * score     x = max(z - tau, 0)     weight = x^r
//
// The threshold tau is the number that makes the sum of the weights 1. threshold.cpp shows the ways
// to find it; here is one of them. alpha = 1 is softmax, which has no threshold.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace course {

// What one pass over the row gives, at some tau.
struct Sums {
  double weight = 0;  // P, the sum of x^r: above 1 if tau is too small, below 1 if it is too large
  double slope = 0;   // U, the sum of x^(r-1): dP/dtau = -r U
  double curve = 0;   // C, the sum of x^(r-2): d2P/dtau2 = r (r-1) C
  int kept = 0;       // how many x are positive
};

inline double power(double x, double exponent) {
  return exponent == 0 ? 1 : exponent == 1 ? x : exponent == 2 ? x * x : std::pow(x, exponent);
}

inline Sums sums_at(const std::vector<double>& z, double r, double tau) {
  Sums sums;
  for (const double value : z) {
    const double x = value - tau;
    if (x <= 0) continue;
    sums.weight += power(x, r);
    sums.slope += power(x, r - 1);
    sums.curve += r > 1 ? power(x, r - 2) : 0;  // for r = 1 its factor (r - 1) is 0
    ++sums.kept;
  }
  return sums;
}

// Newton's step on P^(1/r), which is nearly a straight line. From the left it never passes the
// threshold.
inline double newton_step_on_norm(const Sums& sums, double r) {
  return (sums.weight - std::pow(sums.weight, 1 - 1 / r)) / sums.slope;
}

// The threshold, as exactly as double precision has it.
inline double threshold(const std::vector<double>& z, double r) {
  double tau = *std::max_element(z.begin(), z.end()) - 1;  // here the largest alone has weight 1
  for (int step = 0; step < 100; ++step) {
    const double next = tau + newton_step_on_norm(sums_at(z, r, tau), r);
    if (!(next > tau)) break;  // only rounding is left
    tau = next;
  }
  return tau;
}

inline std::vector<double> entmax(const std::vector<double>& scores, double alpha) {
  std::vector<double> weights(scores.size());
  if (alpha == 1) {  // softmax
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      weights[i] = std::exp(scores[i] - largest);
      sum += weights[i];
    }
    for (double& weight : weights) weight /= sum;
    return weights;
  }
  const double r = 1 / (alpha - 1);
  std::vector<double> z(scores);
  for (double& value : z) value *= alpha - 1;
  const double tau = threshold(z, r);
  for (std::size_t i = 0; i < z.size(); ++i) weights[i] = power(std::max(z[i] - tau, 0.0), r);
  return weights;
}

inline int support(const std::vector<double>& weights) {
  return static_cast<int>(
      std::count_if(weights.begin(), weights.end(), [](double weight) { return weight > 0; }));
}

}  // namespace course
