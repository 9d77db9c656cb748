// tests/support/rounding.h
// What rounding can do to attention, as formulas over one row, pair or element: tolerance.cpp walks
// a case with them on the host, gpu/bounds.cu on a GPU.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "base/dtype.h"
#include "support/on_both.h"

namespace keyhole::test {

// One value rounded to a dtype and back.
KEYHOLE_ON_BOTH inline double rounded_to(DType dtype, double value) {
  switch (dtype) {
    case DType::f16:
      return double(to_f32(to_f16(float(value))));
    case DType::bf16:
      return double(to_f32(to_bf16(float(value))));
    case DType::e4m3:
      return double(to_f32(to_e4m3(float(value))));
    case DType::f32:
      return double(float(value));
    case DType::f64:
      break;
  }
  return value;
}

// A sum of n terms in any order, by several accumulators, is off by about sqrt(n) / 4 roundings and
// rarely by more; the constant stands for the few roundings before and after (exp, scale,
// division).
KEYHOLE_ON_BOTH inline double sum_factor(int64_t terms) {
  return 6 + 0.25 * std::sqrt(double(terms));
}

constexpr double smallest_step(DType dtype) {  // half the distance of the subnormal numbers
  switch (dtype) {
    case DType::f16:
      return 0x1p-25;
    case DType::f64:
      return DBL_MIN;
    default:
      return FLT_MIN;  // flushing subnormals to zero is allowed
  }
}

// By how much storing a result may change it.
KEYHOLE_ON_BOTH inline double storing_error(DType dtype, double want) {
  return rounding_unit(dtype) * std::abs(want) + smallest_step(dtype);
}

template <class Compute>
struct PlainScore {
  Compute score, slope;  // slope: d score / d (q . k)
};

// The rules of one case.
struct Rounding {
  DType dtype = DType::f32;
  bool rounds_weights = false;  // weights and score gradients, before they are multiplied
  bool has_sink = false;
  double scale = 1, softcap = 0;
  int64_t batch = 1, heads = 1, q_len = 1, k_len = 1, head_dim = 1, v_head_dim = 1;

  constexpr DType sum_dtype() const { return dtype == DType::f64 ? DType::f64 : DType::f32; }
  // Of sums. In fp64 the reference is rounded as well, and may be off by as much as the kernel.
  constexpr double unit() const {
    return (dtype == DType::f64 ? 2 : 1) * rounding_unit(sum_dtype());
  }

  // A weight or score gradient as it enters a product, by how much of itself that may be off, and
  // below which size it is lost as a whole.
  template <class Compute>
  KEYHOLE_ON_BOTH Compute factor(Compute x) const {
    return rounds_weights ? Compute(rounded_to(dtype, double(x))) : x;
  }
  constexpr double factor_unit() const { return rounds_weights ? rounding_unit(dtype) : 0; }
  constexpr double lost_factor() const {
    const double of_sums = smallest_step(sum_dtype());
    const double of_factors = rounds_weights ? 2 * smallest_step(dtype) : 0;
    return of_factors > of_sums ? of_factors : of_sums;
  }

  // In the kernel's precision, from q . k.
  template <class Compute>
  KEYHOLE_ON_BOTH PlainScore<Compute> plain_score(Compute product) const {
    const Compute s = Compute(scale) * product;
    if (softcap == 0) return {s, Compute(scale)};
    const Compute capped = std::tanh(s / Compute(softcap));
    return {Compute(softcap) * capped, Compute(scale) * (1 - capped * capped)};
  }

  // By how much any weight of a row may be wrong, relative to itself. largest_product: over its
  // keys, scale * sum |q k|.
  KEYHOLE_ON_BOTH double weight_error(double largest_product, int64_t keys) const {
    double size = largest_product;
    if (has_sink || softcap > 0) size += 4;  // tanh and the sink are rounded as well
    return unit() * (2 * sum_factor(head_dim) * size + sum_factor(keys));
  }

  // What one pair adds to an element of out: to the size of its terms, and to what may be lost.
  constexpr double out_size(double weight, double value_size) const {
    // A weight too small to be represented is lost as a whole.
    return (weight + smallest_step(sum_dtype()) / unit()) * value_size;
  }
  constexpr double out_lost(double value_size) const { return lost_factor() * value_size; }
  KEYHOLE_ON_BOTH double out_bound(double want, double weight_error, double size,
                                   double lost) const {
    return rounding_unit(dtype) * std::abs(want) + (2 * weight_error + factor_unit()) * size +
           lost + smallest_step(dtype);
  }
  KEYHOLE_ON_BOTH double lse_bound(double want, double weight_error) const {
    return 2 * weight_error + 4 * unit() * std::abs(want);
  }

  // What the backward pass knows of a row before it looks at its pairs. Weights are made again from
  // the stored lse, so its rounding counts too.
  struct RowError {
    double weight = 0, delta = 0, delta_size = 0;
  };
  KEYHOLE_ON_BOTH RowError row_error(double weight_error, double lse_bound, double delta_size,
                                     double out_error) const {
    return {2 * weight_error + lse_bound, out_error + unit() * sum_factor(v_head_dim) * delta_size,
            delta_size};
  }
  // The most that rounding of one pair may add to dq per |k| and to dk per |q|, to dv per |dout|.
  struct PairError {
    double dscore = 0, weight = 0;
  };
  KEYHOLE_ON_BOTH PairError pair_error(const RowError& row, double weight, double slope,
                                       double dscore, double dweight, double dweight_size,
                                       double delta) const {
    const double lost = lost_factor(), heavy = weight + lost;
    const double size = std::abs(dweight) + std::abs(delta);
    // Of dweight - delta, which may be 0 by chance where it should not be quite.
    const double difference = row.delta + unit() * sum_factor(v_head_dim) * dweight_size;
    // 1 - tanh^2 cancels, so with a softcap its rounding counts against the slope of 1.
    const double full_slope = softcap > 0 ? std::abs(scale) : std::abs(slope);
    const double dscore_error = heavy * (std::abs(slope) * (row.weight * size + difference) +
                                         16 * unit() * full_slope * (size + difference)) +
                                lost * full_slope * size;
    return {dscore_error + (unit() * sum_factor(k_len + q_len) + factor_unit()) * std::abs(dscore) +
                (rounds_weights ? lost : 0),
            heavy * (row.weight + unit() * sum_factor(q_len * heads) + factor_unit()) + lost};
  }
  // By how much storing a gradient may change it. It may come together from partial sums, of tiles
  // and of query heads, and additions to memory flush each of them to zero where it is subnormal.
  KEYHOLE_ON_BOTH double storing_gradient_error(double want) const {
    constexpr int64_t kSmallestTile = 16;
    const int64_t partial_sums = heads + (q_len + k_len) / kSmallestTile;
    return storing_error(dtype, want) + double(partial_sums) * smallest_step(sum_dtype());
  }
  KEYHOLE_ON_BOTH double sink_error(const RowError& row, double sink_weight) const {
    return sink_weight *
           ((row.weight + unit() * sum_factor(q_len * batch)) * row.delta_size + row.delta);
  }
};

// One element of a result beside what it should be.
struct ElementVerdict {
  bool is_wrong = false;
  double share = 0;                        // of the bound, beyond what storing takes
  double error = 0, plain = 0, bound = 0;  // what the norms are made of
};
// Specials are exact: NaN stands for any NaN, infinities carry their sign, and a finite value
// beyond the dtype's range is stored as infinity, rightly so.
KEYHOLE_ON_BOTH inline ElementVerdict judge_element(DType dtype, double got, double want,
                                                    double bound, double plain) {
  if (!std::isfinite(got) || !std::isfinite(want)) {
    if (std::isnan(want)) return {.is_wrong = !std::isnan(got)};
    const double stored = rounded_to(dtype, want);
    return {.is_wrong = got != stored && !(std::abs(stored) > 0.99 * 65504 && dtype == DType::f16)};
  }
  const double error = std::abs(got - want);
  if (!(error <= bound)) return {.is_wrong = true};
  ElementVerdict verdict;
  const double storing = storing_error(dtype, want);
  if (error > storing && bound > storing) verdict.share = (error - storing) / (bound - storing);
  if (std::isfinite(plain)) {
    verdict.error = error, verdict.plain = plain - want, verdict.bound = bound;
  }
  return verdict;
}

// How far a whole tensor may be off: a few times what the plain loop is. Where that happens to be
// exact, half of what rounding could do: equal terms are rounded alike, so that errors need not
// average out.
KEYHOLE_ON_BOTH inline double allowed_norm(double plain_norm, double bound_norm) {
  return 2 * plain_norm + 0.5 * bound_norm;
}

}  // namespace keyhole::test
