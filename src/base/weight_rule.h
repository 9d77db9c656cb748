// src/base/weight_rule.h
// The weight rule: what becomes of the product q . k of a pair, against the statistic of its row.
//
//   product --bend--> bent --score--> score --weight--> weight      the share of the pair's value
//               |                                 |
//           steepness                           slope               factors of its gradient
//
//   softmax    weight = base^(score - lse), slope = weight; the statistic of a row is its lse
//   entmax     base/entmax.h: weight and slope against lambda; bend and score are the same
//   softcap    bends the product: score = softcap * tanh(scale * product / softcap)
//
// Written once: the reference and every backend use SoftmaxRule (weight_rule-inl.h). `Math` is the
// arithmetic: fp64, fp32 on a GPU, or vectors on a CPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>

#include "base/check.h"
#include "keyhole/normalizer.h"

#ifdef __CUDACC__
#define KEYHOLE_RULE __host__ __device__ __forceinline__
#else
#define KEYHOLE_RULE inline __attribute__((always_inline))
#endif

namespace keyhole {

// The rule of a call, from its options.
struct WeightRule {
  Normalizer normalizer = {};
  double scale = 1;    // of q . k
  double softcap = 0;  // 0: none

  KEYHOLE_RULE bool has_softcap() const { return softcap > 0; }
  // Also false if the softcap is so large relative to the scale that it has no effect in fp32.
  bool bends_in_fp32() const {
    return has_softcap() && (scale == 0 || float(scale / softcap) != 0);
  }
};

// Properties of a rule.
struct RuleFacts {
  std::string name;
  // Results over disjoint sets of keys can be combined from their statistics alone.
  bool statistics_add_up;
};
inline RuleFacts facts_of(const Normalizer& normalizer) {
  return {to_string(normalizer), normalizer.is_plain_softmax()};
}

// For code that combines results by their statistics: merge, and kernels that do so for split lists
// or for plans of several parts.
inline void check_statistics_add_up(const RuleFacts& rule, const char* who, const char* way_out) {
  if (rule.statistics_add_up) return;
  throw Error(ErrorKind::unsupported,
              say("attention: ", who, " joins results over different keys, and those of ",
                  rule.name, " cannot be joined; ", way_out));
}

// Which calls a kernel is compiled for.
enum class Bend : uint8_t {
  none,     // calls without a softcap
  softcap,  // calls with one
  either,   // decided at run time, per product
};

// Arithmetic on plain numbers. A Math adds to it
//   power(x)    base^x, for scores of that base
//   tanh(y)     the hyperbolic tangent of y / kTanhScale
template <class Number>
struct PlainArithmetic {
  using Real = Number;  // a number of the call, the same for all pairs

  static KEYHOLE_RULE Number all(Real x) { return x; }
  static KEYHOLE_RULE Number times(Number a, Real b) { return a * b; }
  static KEYHOLE_RULE Number minus(Number a, Number b) { return a - b; }
  static KEYHOLE_RULE Number times_plus(Number a, Real b, Number c) { return a * b + c; }
  static KEYHOLE_RULE Number one_minus_square(Number x) { return 1 - x * x; }
};

// Scores in base e, with the functions of the standard library.
template <class Number>
struct NaturalMath : PlainArithmetic<Number> {
  static constexpr double kLogE = 1;       // log(e) in the base of the scores
  static constexpr double kTanhScale = 1;  // the factor that tanh expects its argument to have
  static Number power(Number x) { return std::exp(x); }
  static Number tanh(Number x) { return std::tanh(x); }
};

inline constexpr double kLog2E = std::numbers::log2e;

// Scores in base 2: powers of 2 are the cheapest.
template <class Number>
struct Base2Math : PlainArithmetic<Number> {
  static constexpr double kLogE = kLog2E;
  static constexpr double kTanhScale = 1;
  static Number power(Number x) { return std::exp2(x); }
  static Number tanh(Number x) { return std::tanh(x); }
};

// The rule as the few numbers that a loop keeps.
template <class Real>
struct RuleNumbers {
  Real inner;   // tanh takes inner * product; 0: no softcap
  Real factor;  // score = factor * bent
  Real scale;   // d score / d product in base e, without a softcap
};
template <class Math>
KEYHOLE_RULE RuleNumbers<typename Math::Real> numbers_of(const WeightRule& rule) {
  using Real = typename Math::Real;
  using Wide = decltype(Real() + double());  // keeps the digits of a Real wider than double
  const Wide bend = rule.has_softcap() ? Wide(rule.scale) / Wide(rule.softcap) : Wide(0);
  const Real inner = Real(bend * Wide(Math::kTanhScale));
  // A softcap has no effect if the scale is 0, or negligible beside it in the precision of Real.
  const double factor = inner != 0 ? rule.softcap : rule.scale;
  return {inner, Real(factor * Math::kLogE), Real(rule.scale)};
}

#include "base/weight_rule-inl.h"

}  // namespace keyhole
