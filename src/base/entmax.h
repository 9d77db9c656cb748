// src/base/entmax.h
// alpha-entmax: from the scores s of a row to its weights, against the row's lambda.
//
//   r = 1 / (alpha - 1)     x = max(1 + (alpha - 1) (s - lambda), 0)
//   weight = x^r            slope = d weight / d s = x^(r - 1)        sum of weights = 1 fixes
//   lambda
//
// lambda is in units of a score. It tends to the lse for alpha -> 1, where weight = slope =
// exp(s - lambda). Most literature writes tau = (alpha - 1) lambda - 1.
//
// A row is solved on a list of its scores. What the list may leave out:
//   - max(s) <= lambda <= max(s) + log(number of keys), so only scores above max(s) - r matter;
//   - lambda of any subset of the keys is a lower bound of lambda, so what weighs nothing against a
//     subset weighs nothing at all, in any order of the keys.
//
// For the host and for devices. entmax-inl.h has the rule, for any arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/weight_rule.h"

namespace keyhole {

// The exponent r as kernels use it.
struct EntmaxPower {
  double bend = 0;   // alpha - 1; 0: softmax
  double power = 0;  // r
  int whole = 0;     // r, if it is 1, 2, 3 or 4 (alpha 2, 1.5, 4/3, 1.25): multiplications; else 0

  static EntmaxPower of(double alpha) {
    if (alpha == 1) return {};
    const double r = 1 / (alpha - 1), rounded = std::round(r);
    const bool is_whole = rounded <= 4 && std::abs(r - rounded) < 1e-12;
    return {alpha - 1, r, is_whole ? int(rounded) : 0};
  }
  constexpr bool is_softmax() const { return bend == 0; }
  // How far below the largest score a score may be and still weigh something.
  constexpr double reach() const {
    return is_softmax() ? std::numeric_limits<double>::infinity() : power;
  }
};

// Arithmetic on plain numbers, with the functions of the standard library. Other Maths have the
// same functions.
template <class Number>
struct EntmaxMath : PlainArithmetic<Number> {
  static KEYHOLE_RULE Number product(Number a, Number b) { return a * b; }
  static KEYHOLE_RULE Number one_plus(Number x) { return 1 + x; }
  static KEYHOLE_RULE Number at_least_0(Number x) { return x <= 0 ? Number(0) : x; }  // keeps NaN
  static KEYHOLE_RULE Number one_if_positive(Number x) { return x <= 0 ? Number(0) : Number(1); }
  static KEYHOLE_RULE Number quotient_or_0(Number a, Number b) {
    return b <= 0 ? Number(0) : a / b;
  }
  static KEYHOLE_RULE Number exp(Number x) { return std::exp(x); }
  // (1 + x)^power; 0 for x <= -1. By log1p: for alpha near 1 the power multiplies every lost digit.
  static KEYHOLE_RULE Number power_of_one_plus(Number x, Number power) {
    return x <= -1 ? Number(0) : std::exp(power * std::log1p(x));
  }
};

#include "base/entmax-inl.h"

// Sums over a list at some lambda.
template <class Number>
struct EntmaxSums {
  Number weight = 0;  // of all x^r: 1 at the solution
  Number slope = 0;   // of all x^(r - 1) = -d weight / d lambda
  Number count = 0;   // of all x > 0
};

// How far lambda moves from a lambda with these sums by Newton's step on weight^(alpha - 1). From
// max(s) on, such steps never pass the solution: every lambda on the way is a lower bound. Not for
// alpha = 1.
template <class Number>
KEYHOLE_RULE Number lambda_step_below(const EntmaxPower& power, const EntmaxSums<Number>& sums) {
  if (power.whole == 2) return 2 * (sums.weight - std::sqrt(sums.weight)) / sums.slope;
  const Number bend = Number(power.bend);
  return -sums.weight * std::expm1(-bend * std::log(sums.weight)) / (bend * sums.slope);
}

// The same towards the solution alone, for any alpha. For alpha = 1.5 the weights are a quadratic
// in lambda, which is solved: exact once the list of x > 0 is right, but it may pass the solution.
template <class Number>
KEYHOLE_RULE Number lambda_step(const EntmaxPower& power, const EntmaxSums<Number>& sums) {
  const Number excess = sums.weight - 1;
  if (power.is_softmax()) return std::log(sums.weight);
  if (power.whole == 2) {
    const Number square = sums.slope * sums.slope - sums.count * excess;
    if (square < 0) return 2 * sums.slope / sums.count;
    return 2 * excess / (sums.slope + std::sqrt(square));
  }
  return lambda_step_below(power, sums);
}

// How far tau = (alpha - 1) lambda - 1 moves, in the same way, from sums of x^r and x^(r - 1).
template <class Number>
KEYHOLE_RULE Number tau_step(Number r, Number weight, Number slope) {
  return (weight - std::exp2((1 - 1 / r) * std::log2(weight))) / slope;
}
// With the second derivative of weight^(1 / r), from the sum of x^(r - 2), for r of at least 2: two
// steps do what four or five do without. It may pass the solution; from there the next one returns.
template <class Number>
KEYHOLE_RULE Number tau_step(Number r, Number weight, Number slope, Number curve) {
  const Number excess = weight - std::exp2((1 - 1 / r) * std::log2(weight));
  const Number second = (r - 1) * (curve - slope * (slope / weight));
  const Number square = std::fma(slope, slope, -2 * excess * second);
  return square > 0 ? 2 * excess / (slope + std::sqrt(square)) : excess / slope;
}
// Up to this r, x^r by logarithms in fp32 keeps the digits of a weight in 16 bits.
inline constexpr double kLargestFastPower = 128;

// The score below which a key has no weight, for a lower bound of lambda; a little lower, for
// rounding.
template <class Number>
KEYHOLE_RULE Number lowest_score(const EntmaxPower& power, Number lambda) {
  if (power.is_softmax() || !(std::abs(lambda) <= std::numeric_limits<Number>::max())) {
    return std::numeric_limits<Number>::lowest();
  }
  const Number lowest = lambda - Number(power.reach());
  return lowest -
         4 * std::numeric_limits<Number>::epsilon() * (std::abs(lowest) + std::abs(lambda));
}

// Whether these sums are as good as rounding lets them be, for a list of `count` scores.
template <class Number>
KEYHOLE_RULE bool is_solved(Number weight_sum, int64_t count) {
  constexpr Number kUnit = std::numeric_limits<Number>::epsilon();
  const Number tolerance = kUnit * (Number(2.5) + std::sqrt(Number(count)) / 16);
  return !(std::abs(weight_sum - 1) > tolerance);  // also for NaN: nothing is left to do
}
inline constexpr int kMostEntmaxRounds = 32;

// A search for lambda - top: `above` starts at a lower bound of it.
template <class Number>
struct LambdaSearch {
  Number above = 0;
  bool is_done = false;

  // sums: at `above`, over a list of `count` scores.
  KEYHOLE_RULE void step(const EntmaxPower& power, const EntmaxSums<Number>& sums, int64_t count) {
    if (is_done) return;
    const Number next = above + lambda_step(power, sums);
    is_done = is_solved(sums.weight, count) || next == above;
    if (!is_done) above = next;
  }
};

// lambda - top, for `sums_at(lambda - top)` over a list of `count` scores whose largest is `top`.
// above: a lower bound of it, to begin with.
template <class Number, class SumsAt>
KEYHOLE_RULE Number solve_lambda(const EntmaxPower& power, int64_t count, Number above,
                                 SumsAt sums_at) {
  LambdaSearch<Number> search = {above};
  for (int round = 0; round < kMostEntmaxRounds && !search.is_done; ++round) {
    search.step(power, sums_at(search.above), count);
  }
  return search.above;
}

// The sums of a plain list at lambda = top + above. Subtracting in two steps keeps the digits of
// scores that are large beside their differences.
template <class Number>
KEYHOLE_RULE EntmaxSums<Number> entmax_sums(const EntmaxPower& power, const Number* scores,
                                            int64_t count, Number top, Number above) {
  const auto rule = EntmaxRule<EntmaxMath<Number>>::of(power);
  EntmaxSums<Number> sums;
  for (int64_t i = 0; i < count; ++i) {
    const auto terms = rule.terms((scores[i] - top) - above);
    sums.weight += terms.weight;
    sums.slope += terms.slope;
    sums.count += terms.slope > 0 ? 1 : 0;
  }
  return sums;
}
// lambda of a list of finite scores, as top + above; top is -infinity for an empty list.
template <class Number>
struct Lambda {
  Number top = -std::numeric_limits<Number>::infinity();
  Number above = 0;
  KEYHOLE_RULE Number value() const { return top + above; }
};
template <class Number>
KEYHOLE_RULE Lambda<Number> solve_entmax(const EntmaxPower& power, const Number* scores,
                                         int64_t count) {
  Lambda<Number> lambda;
  if (count == 0) return lambda;
  for (int64_t i = 0; i < count; ++i) {
    lambda.top = scores[i] > lambda.top ? scores[i] : lambda.top;
  }
  lambda.above = solve_lambda<Number>(power, count, 0, [&](Number above) {
    return entmax_sums(power, scores, count, lambda.top, above);
  });
  return lambda;
}

// The order in which top_k takes keys.
template <class Number>
KEYHOLE_RULE bool ranks_before(Number score, int64_t key, Number other_score, int64_t other_key) {
  return score > other_score || (score == other_score && key < other_key);
}

}  // namespace keyhole
