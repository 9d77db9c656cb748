// src/kernels/mma/entmax_bound.cuh
// A bound of a row: below it no key has weight, whatever the keys still to come. Found from any
// part of the row's keys (base/entmax.h): a step towards their lambda that never passes it, or the
// top_k-th largest of them.
//
// A level is a score divided by the scale, which without a softcap is the product q . k itself.
// Lists hold products. Those of rounded rows (base/rounded_rows.h) may be off by a margin. Their
// bound is a bound of rounded scores; that of the scores themselves is at most a margin below it,
// and what exceeds that has a rounded product at most one more margin below.
#pragma once

#include <type_traits>

#include "kernels/device/entmax_params.h"

namespace keyhole::mma {

// kPlain: alpha = 1.5, no softcap, not bounded by top_k. The other form takes any call.
template <bool kPlain>
struct BoundRule {
  float unit;     // (alpha - 1) * scale: z = unit * level; 0: softmax, bounded by top_k alone
  float power;    // r
  float rest;     // 2 - alpha
  int32_t whole;  // r as a whole number, or 0
  int32_t top_k;  // 0: no bound by it
  float inner;    // level = outer * tanh(inner * product); 0: no softcap
  float outer;

  __device__ __forceinline__ bool has_sums() const { return kPlain || unit != 0; }
  __device__ __forceinline__ bool has_ranks() const { return !kPlain && top_k > 0; }
  __device__ __forceinline__ bool has_softcap() const { return !kPlain && inner != 0; }
  __device__ __forceinline__ int32_t whole_power() const { return kPlain ? 2 : whole; }

  __device__ __forceinline__ float level(float product) const {
    return has_softcap() ? outer * tanhf(inner * product) : product;
  }
  // The lambda that belongs to a bound; -inf: none.
  __device__ __forceinline__ float lambda_at(float level) const {
    return has_sums() ? power * fmaf(unit, level, 1) : -INFINITY;
  }
  // A product whose level is not above the given one.
  __device__ __forceinline__ float product_below(float level) const {
    constexpr float kSlightly = 1e-5f, kUnits = 5e-7f;
    if (!has_softcap()) return level - kUnits * fabsf(level);  // a bound is rounded, too
    const float bent = level / outer;
    if (bent <= -1) return -INFINITY;
    const float product = atanhf(fminf(bent, 1 - kSlightly)) / inner;
    constexpr float kTiny = 1e-30f;  // beside 0, where the division may have lost all digits
    return product - kSlightly * fabsf(product) - kTiny;
  }
};

// scale > 0.
inline BoundRule<false> bound_rule(const device::EntmaxParams& p) {
  const double scale = p.sizes.scale, softcap = p.sizes.softcap;
  const bool has_softcap = softcap > 0 && float(scale / softcap) != 0;
  // For larger alpha lists are shorter than any top_k that is worth a search.
  const bool needs_top_k = p.power.is_softmax() || p.power.power > 2.5;
  return {.unit = float(p.power.bend * scale),
          .power = float(p.power.power),
          .rest = float(1 - p.power.bend),
          .whole = p.power.whole,
          .top_k = needs_top_k ? int32_t(p.top_k) : 0,
          .inner = has_softcap ? float(scale / softcap) : 0,
          .outer = has_softcap ? float(softcap / scale) : 0};
}

inline bool is_plain(const BoundRule<false>& rule) {
  return rule.whole == 2 && rule.top_k == 0 && rule.inner == 0;
}

// What a scan is given: where products are those of rounded rows, a margin of each row, too.
template <bool kPlain>
struct RoundedRule : BoundRule<kPlain> {
  const float* margin;  // [rows]
};
template <bool kPlain, bool kIsRounded>
using ScanRule = std::conditional_t<kIsRounded, RoundedRule<kPlain>, BoundRule<kPlain>>;

template <bool kPlain, bool kIsRounded>
ScanRule<kPlain, kIsRounded> scan_rule(const BoundRule<false>& rule,
                                       const device::RoundedRows& rounded) {
  const BoundRule<kPlain> bound = {rule.unit,  rule.power, rule.rest, rule.whole,
                                   rule.top_k, rule.inner, rule.outer};
  if constexpr (kIsRounded) {
    return {bound, rounded.margin};
  } else {
    return bound;
  }
}

// The margins of a lane's two rows, if there are any.
template <bool kIsRounded>
struct Margins {
  float of_row[2];
};
template <>
struct Margins<false> {};

// Sums over the entries above a bound, in z.
template <bool kPlain>
struct BoundSums {
  float weight = 0, slope = 0;

  // over: how far above the bound, at least 0.
  __device__ __forceinline__ void add(const BoundRule<kPlain>& rule, float over) {
    if (rule.whole_power() == 2) {
      weight = fmaf(over, over, weight);
      slope += over;
    } else if (rule.whole_power() == 1) {
      weight += over;
      slope += over > 0 ? 1 : 0;
    } else if (rule.whole_power() != 0) {
      const float square = over * over;
      weight += rule.whole_power() == 3 ? square * over : square * square;
      slope += rule.whole_power() == 3 ? square : square * over;
    } else if (over > 0) {
      const float term = exp2f(rule.power * log2f(over));
      weight += term;
      slope += term / over;
    }
  }
  // How far the bound rises, in z.
  __device__ __forceinline__ float step(const BoundRule<kPlain>& rule) const {
    if (!(weight > 1)) return 0;
    const float rest = rule.whole_power() == 2   ? sqrtf(weight)
                       : rule.whole_power() == 1 ? 1
                                                 : exp2f(rule.rest * log2f(weight));
    const float step = __fdividef(weight - rest, slope);
    constexpr float kNotQuite = 0.99999f;  // sums are rounded
    return step < INFINITY ? step * kNotQuite : 0;
  }
};

}  // namespace keyhole::mma
