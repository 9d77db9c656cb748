// tests/support/tolerance.cpp
// Walks the allowed pairs of a case once, in absolute values for the bounds and in the kernel's
// precision for the plain result.
#include "support/tolerance.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/check.h"
#include "base/dtype.h"

namespace keyhole::test {
namespace {

// A sum of n terms in any order, by several accumulators, is off by about sqrt(n) / 4 roundings and
// rarely by more; the constant stands for the few roundings before and after (exp, scale,
// division).
double sum_factor(int64_t terms) { return 6 + 0.25 * std::sqrt(double(terms)); }

double compute_unit(DType dtype) {
  return rounding_unit(dtype == DType::f64 ? DType::f64 : DType::f32);
}
double smallest_step(DType dtype) {  // half the distance of the subnormal numbers
  switch (dtype) {
    case DType::f16:
      return 0x1p-25;
    case DType::f64:
      return DBL_MIN;
    default:
      return FLT_MIN;  // flushing subnormals to zero is allowed
  }
}

// Everything the two walks share. Tensors as fp64 copies in logical order.
struct Walk {
  const Case& c;
  const AllowedPairs& allowed;
  std::vector<double> q, k, v, dout, sink;
  double scale, unit;
  bool rounds_weights;

  Walk(const Case& the_case, const AllowedPairs& pairs, const Inputs& in, bool rounds)
      : c(the_case),
        allowed(pairs),
        q(in.q.values()),
        k(in.k.values()),
        v(in.v.values()),
        dout(in.dout.values()),
        sink(in.sink.values()),
        scale(c.scale.value_or(1 / std::sqrt(double(c.head_dim)))),
        unit(compute_unit(c.dtype)),
        rounds_weights(rounds) {}

  // A weight or score gradient as it enters a product, by how much of itself that may be off, and
  // below which size it is lost as a whole.
  template <class Compute>
  Compute factor(Compute x) const {
    return rounds_weights ? Compute(rounded_to(c.dtype, double(x))) : x;
  }
  double factor_unit() const { return rounds_weights ? rounding_unit(c.dtype) : 0; }
  double lost_factor() const {
    const double of_sums = smallest_step(c.dtype == DType::f64 ? DType::f64 : DType::f32);
    return rounds_weights ? std::max(2 * smallest_step(c.dtype), of_sums) : of_sums;
  }

  int64_t q_row(int64_t b, int64_t h, int64_t i) const { return (b * c.heads + h) * c.q_len + i; }
  int64_t k_row(int64_t b, int64_t h, int64_t j) const {
    return (b * c.kv_heads + h / (c.heads / c.kv_heads)) * c.k_len + j;
  }
  template <class Visit>
  void for_each_row(const Visit& visit) const {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t i = 0; i < c.q_len; ++i) visit(b, h, i);
      }
    }
  }
};

// One row's scores in the kernel's precision, and how far they may be off.
template <class Compute>
struct Scores {
  std::vector<int64_t> keys;
  std::vector<Compute> score, slope;  // slope: d score / d (q . k)
  std::vector<Compute> weight;
  Compute lse, sink_weight;
  double largest_product = 0;  // max over keys of scale * sum |q k|

  void compute(const Walk& walk, int64_t b, int64_t h, int64_t i) {
    const Case& c = walk.c;
    keys.clear(), score.clear(), slope.clear(), weight.clear();
    largest_product = 0;
    const double* q = walk.q.data() + walk.q_row(b, h, i) * c.head_dim;
    Compute top = c.has_sink ? Compute(walk.sink[size_t(h)]) : Compute(-INFINITY);
    const uint8_t* row = walk.allowed.row(b, h, i);
    for (int64_t j = 0; j < c.k_len; ++j) {
      if (!row[j]) continue;
      const double* k = walk.k.data() + walk.k_row(b, h, j) * c.head_dim;
      Compute sum = 0;
      double size = 0;
      for (int64_t x = 0; x < c.head_dim; ++x) {
        sum += Compute(q[x]) * Compute(k[x]);
        size += std::abs(q[x] * k[x]);
      }
      Compute s = Compute(walk.scale) * sum, ds = Compute(walk.scale);
      if (c.softcap > 0) {
        const Compute capped = std::tanh(s / Compute(c.softcap));
        s = Compute(c.softcap) * capped;
        ds *= 1 - capped * capped;
      }
      largest_product = std::max(largest_product, size * std::abs(walk.scale));
      top = s > top ? s : top;
      keys.push_back(j), score.push_back(s), slope.push_back(ds);
    }
    const Compute base = std::isfinite(top) ? top : Compute(0);
    Compute total = c.has_sink ? std::exp(Compute(walk.sink[size_t(h)]) - base) : Compute(0);
    sink_weight = total;
    for (const Compute s : score) {
      weight.push_back(std::exp(s - base));
      total += weight.back();
    }
    lse = base + std::log(total);
    for (Compute& w : weight) w = total == 0 ? Compute(0) : w / total;
    sink_weight = total == 0 ? Compute(0) : sink_weight / total;
  }

  // By how much any weight of the row may be wrong, relative to itself.
  double weight_error(const Walk& walk) const {
    double size = largest_product;
    if (walk.c.has_sink || walk.c.softcap > 0) size += 4;  // tanh and the sink are rounded as well
    return walk.unit * (2 * sum_factor(walk.c.head_dim) * size + sum_factor(int64_t(keys.size())));
  }
};

Expected make_expected(std::vector<double> want) {
  Expected expected;
  expected.bound.assign(want.size(), 0);
  expected.plain.assign(want.size(), 0);
  expected.want = std::move(want);
  return expected;
}

template <class Compute>
void walk_forward(const Walk& walk, ExpectedForward& expected) {
  const Case& c = walk.c;
  Scores<Compute> row;
  std::vector<Compute> out(size_t(c.v_head_dim));
  std::vector<double> size(size_t(c.v_head_dim)), lost(size_t(c.v_head_dim));
  const DType lse_dtype = c.dtype == DType::f64 ? DType::f64 : DType::f32;
  walk.for_each_row([&](int64_t b, int64_t h, int64_t i) {
    row.compute(walk, b, h, i);
    std::fill(out.begin(), out.end(), Compute(0));
    std::fill(size.begin(), size.end(), 0.0);
    std::fill(lost.begin(), lost.end(), 0.0);
    for (size_t j = 0; j < row.keys.size(); ++j) {
      const double* v = walk.v.data() + walk.k_row(b, h, row.keys[j]) * c.v_head_dim;
      for (size_t x = 0; x < out.size(); ++x) {
        out[x] += walk.factor(row.weight[j]) * Compute(v[x]);
        // A weight too small to be represented is lost as a whole.
        size[x] += (double(row.weight[j]) + smallest_step(lse_dtype) / walk.unit) * std::abs(v[x]);
        lost[x] += walk.lost_factor() * std::abs(v[x]);
      }
    }
    const double error = 2 * row.weight_error(walk);
    const int64_t at = walk.q_row(b, h, i);
    for (int64_t x = 0; x < c.v_head_dim; ++x) {
      const size_t e = size_t(at * c.v_head_dim + x);
      expected.out.plain[e] = rounded_to(c.dtype, double(out[size_t(x)]));
      expected.out.bound[e] = rounding_unit(c.dtype) * std::abs(expected.out.want[e]) +
                              (error + walk.factor_unit()) * size[size_t(x)] + lost[size_t(x)] +
                              smallest_step(c.dtype);
    }
    expected.lse.plain[size_t(at)] = rounded_to(lse_dtype, double(row.lse));
    expected.lse.bound[size_t(at)] =
        error + 4 * walk.unit * std::abs(expected.lse.want[size_t(at)]);
  });
}

template <class Compute>
void walk_backward(const Walk& walk, const ExpectedForward& forward, ExpectedGradients& grad) {
  const Case& c = walk.c;
  const int64_t d = c.head_dim, vd = c.v_head_dim;
  Scores<Compute> row;
  std::vector<Compute> dq(grad.dq.want.size()), dk(grad.dk.want.size()), dv(grad.dv.want.size());
  std::vector<Compute> dsink(grad.dsink.want.size());
  const double lost_weight = walk.lost_factor();
  walk.for_each_row([&](int64_t b, int64_t h, int64_t i) {
    row.compute(walk, b, h, i);
    if (row.keys.empty()) return;
    const int64_t at = walk.q_row(b, h, i);
    const double* dout = walk.dout.data() + at * vd;
    const double* q = walk.q.data() + at * d;
    const double* out = forward.out.plain.data() + at * vd;
    const double* out_bound = forward.out.bound.data() + at * vd;
    // Weights are made again from the stored lse, so its rounding counts too.
    const double weight_error = 2 * row.weight_error(walk) + forward.lse.bound[size_t(at)];
    Compute delta = 0;
    double delta_size = 0, delta_error = 0;
    for (int64_t x = 0; x < vd; ++x) {
      delta += Compute(dout[x]) * Compute(out[x]);
      delta_size += std::abs(dout[x] * out[x]);
      delta_error += std::abs(dout[x]) * out_bound[x];
    }
    delta_error += walk.unit * sum_factor(vd) * delta_size;
    for (size_t j = 0; j < row.keys.size(); ++j) {
      const int64_t key = walk.k_row(b, h, row.keys[j]);
      const double* v = walk.v.data() + key * vd;
      const double* k = walk.k.data() + key * d;
      Compute dweight = 0;
      double dweight_size = 0;
      for (int64_t x = 0; x < vd; ++x) {
        dweight += Compute(dout[x]) * Compute(v[x]);
        dweight_size += std::abs(dout[x] * v[x]);
      }
      const Compute weight = row.weight[j];
      // A weight too small to be represented is lost as a whole.
      const double heavy = double(weight) + lost_weight;
      const Compute dscore = weight * (dweight - delta) * row.slope[j];
      const double size = std::abs(double(dweight)) + std::abs(double(delta));
      // 1 - tanh^2 cancels, so with a softcap its rounding counts against the slope of 1.
      const double slope = std::abs(double(row.slope[j]));
      const double full_slope = c.softcap > 0 ? std::abs(walk.scale) : slope;
      const double dscore_error = heavy * (slope * (weight_error * size + delta_error +
                                                    walk.unit * sum_factor(vd) * dweight_size) +
                                           16 * walk.unit * full_slope * size) +
                                  lost_weight * full_slope * size;
      const double dscore_size = dscore_error +
                                 (walk.unit * sum_factor(c.k_len + c.q_len) + walk.factor_unit()) *
                                     std::abs(double(dscore)) +
                                 (walk.rounds_weights ? lost_weight : 0);
      for (int64_t x = 0; x < d; ++x) {
        dq[size_t(at * d + x)] += walk.factor(dscore) * Compute(k[x]);
        dk[size_t(key * d + x)] += walk.factor(dscore) * Compute(q[x]);
        grad.dq.bound[size_t(at * d + x)] += dscore_size * std::abs(k[x]);
        grad.dk.bound[size_t(key * d + x)] += dscore_size * std::abs(q[x]);
      }
      const double weight_size =
          heavy * (weight_error + walk.unit * sum_factor(c.q_len * c.heads) + walk.factor_unit()) +
          lost_weight;
      for (int64_t x = 0; x < vd; ++x) {
        dv[size_t(key * vd + x)] += walk.factor(weight) * Compute(dout[x]);
        grad.dv.bound[size_t(key * vd + x)] += weight_size * std::abs(dout[x]);
      }
    }
    if (c.has_sink) {
      dsink[size_t(h)] -= row.sink_weight * delta;
      grad.dsink.bound[size_t(h)] +=
          double(row.sink_weight) *
          ((weight_error + walk.unit * sum_factor(c.q_len * c.batch)) * delta_size + delta_error);
    }
  });
  const auto finish = [&](Expected& expected, const std::vector<Compute>& plain, DType dtype) {
    for (size_t e = 0; e < plain.size(); ++e) {
      expected.plain[e] = rounded_to(dtype, double(plain[e]));
      expected.bound[e] += rounding_unit(dtype) * std::abs(expected.want[e]) + smallest_step(dtype);
    }
  };
  finish(grad.dq, dq, c.dtype);
  finish(grad.dk, dk, c.dtype);
  finish(grad.dv, dv, c.dtype);
  finish(grad.dsink, dsink, DType::f32);
}

bool is_special(double x) { return !std::isfinite(x); }

// NaN stands for any NaN; infinities carry their sign. A finite value beyond the dtype's range is
// stored as infinity, and rightly so.
bool same_special(double got, double want, DType dtype) {
  if (std::isnan(want)) return std::isnan(got);
  const double stored = rounded_to(dtype, want);
  return got == stored || (std::abs(stored) > 0.99 * 65504 && dtype == DType::f16);
}

}  // namespace

ExpectedForward expect_forward(const Case& c, const Pattern& pattern, const AllowedPairs& allowed,
                               const Inputs& in, bool rounds_weights) {
  ReferenceOutput want =
      reference_forward(pattern, in.q.view(), in.k.view(), in.v.view(), in.options, c.offset);
  ExpectedForward expected{make_expected(std::move(want.out)), make_expected(std::move(want.lse))};
  const Walk walk(c, allowed, in, rounds_weights);
  if (c.dtype == DType::f64) {
    walk_forward<double>(walk, expected);
  } else {
    walk_forward<float>(walk, expected);
  }
  return expected;
}

ExpectedGradients expect_gradients(const Case& c, const Pattern& pattern,
                                   const AllowedPairs& allowed, const Inputs& in,
                                   const ExpectedForward& forward, bool rounds_weights) {
  ReferenceGradients want = reference_backward(pattern, in.dout.view(), in.q.view(), in.k.view(),
                                               in.v.view(), in.options, c.offset);
  ExpectedGradients expected{make_expected(std::move(want.dq)), make_expected(std::move(want.dk)),
                             make_expected(std::move(want.dv)),
                             make_expected(std::move(want.dsink))};
  const Walk walk(c, allowed, in, rounds_weights);
  if (c.dtype == DType::f64) {
    walk_backward<double>(walk, forward, expected);
  } else {
    walk_backward<float>(walk, forward, expected);
  }
  return expected;
}

std::string disagreement(const std::string& name, DType dtype, const std::vector<double>& got,
                         const Expected& expected, double* worst) {
  if (got.size() != expected.want.size()) {
    return say(name, ": has ", got.size(), " elements, expected ", expected.want.size());
  }
  double got_norm = 0, plain_norm = 0, bound_norm = 0;
  for (size_t e = 0; e < got.size(); ++e) {
    const double want = expected.want[e];
    if (is_special(got[e]) || is_special(want)) {
      if (same_special(got[e], want, dtype)) continue;
      return say(name, "[", e, "] is ", got[e], ", the reference says ", want);
    }
    const double error = std::abs(got[e] - want);
    if (!(error <= expected.bound[e])) {
      return say(name, "[", e, "] is ", got[e], ", the reference says ", want, "; off by ", error,
                 ", rounding explains ", expected.bound[e], "; a plain loop gives ",
                 expected.plain[e]);
    }
    // Storing the result may take all of its half step; what was computed is the rest.
    const double storing = rounding_unit(dtype) * std::abs(want) + smallest_step(dtype);
    if (worst && error > storing && expected.bound[e] > storing) {
      *worst = std::max(*worst, (error - storing) / (expected.bound[e] - storing));
    }
    if (is_special(expected.plain[e])) continue;
    got_norm += error * error;
    plain_norm += (expected.plain[e] - want) * (expected.plain[e] - want);
    bound_norm += expected.bound[e] * expected.bound[e];
  }
  // Where the plain loop happens to be exact, half of what rounding could do: equal terms are
  // rounded alike, so that errors need not average out.
  const double allowed = 2 * std::sqrt(plain_norm) + 0.5 * std::sqrt(bound_norm);
  if (std::sqrt(got_norm) > allowed) {
    return say(name, ": off by ", std::sqrt(got_norm), " in norm, a plain loop in ",
               to_string(dtype), " is off by ", std::sqrt(plain_norm), "; allowed ", allowed);
  }
  return "";
}

}  // namespace keyhole::test
