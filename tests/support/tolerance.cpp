// tests/support/tolerance.cpp
// Walks the allowed pairs of a case once, in absolute values for the bounds and in the kernel's
// precision for the plain result.
#include "support/tolerance.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "support/case_walk.h"
#include "support/sparse_tolerance.h"

namespace keyhole::test {
namespace {

// One row's scores in the kernel's precision, and how far they may be off.
template <class Compute>
struct Scores {
  std::vector<int64_t> keys;
  std::vector<Compute> score, slope;  // slope: d score / d (q . k)
  std::vector<Compute> weight;
  Compute lse, sink_weight;
  double largest_product = 0;  // max over keys of scale * sum |q k|

  void compute(const CaseWalk& walk, int64_t b, int64_t h, int64_t i) {
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
      const auto [s, ds] = walk.rules.plain_score(sum);
      largest_product = std::max(largest_product, size * std::abs(walk.rules.scale));
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

  double weight_error(const CaseWalk& walk) const {
    return walk.rules.weight_error(largest_product, int64_t(keys.size()));
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
void walk_forward(const CaseWalk& walk, ExpectedForward& expected) {
  const Case& c = walk.c;
  Scores<Compute> row;
  std::vector<Compute> out(size_t(c.v_head_dim));
  std::vector<double> size(size_t(c.v_head_dim)), lost(size_t(c.v_head_dim));
  const Rounding& rules = walk.rules;
  walk.for_each_row([&](int64_t b, int64_t h, int64_t i) {
    row.compute(walk, b, h, i);
    std::fill(out.begin(), out.end(), Compute(0));
    std::fill(size.begin(), size.end(), 0.0);
    std::fill(lost.begin(), lost.end(), 0.0);
    for (size_t j = 0; j < row.keys.size(); ++j) {
      const double* v = walk.v.data() + walk.k_row(b, h, row.keys[j]) * c.v_head_dim;
      for (size_t x = 0; x < out.size(); ++x) {
        out[x] += rules.factor(row.weight[j]) * Compute(v[x]);
        size[x] += rules.out_size(double(row.weight[j]), std::abs(v[x]));
        lost[x] += rules.out_lost(std::abs(v[x]));
      }
    }
    const double error = row.weight_error(walk);
    const int64_t at = walk.q_row(b, h, i);
    for (int64_t x = 0; x < c.v_head_dim; ++x) {
      const size_t e = size_t(at * c.v_head_dim + x);
      expected.out.plain[e] = rounded_to(c.dtype, double(out[size_t(x)]));
      expected.out.bound[e] =
          rules.out_bound(expected.out.want[e], error, size[size_t(x)], lost[size_t(x)]);
    }
    expected.lse.plain[size_t(at)] = rounded_to(rules.sum_dtype(), double(row.lse));
    expected.lse.bound[size_t(at)] = rules.lse_bound(expected.lse.want[size_t(at)], error);
  });
}

template <class Compute>
void walk_backward(const CaseWalk& walk, const ExpectedForward& forward, ExpectedGradients& grad) {
  const Case& c = walk.c;
  const int64_t d = c.head_dim, vd = c.v_head_dim;
  Scores<Compute> row;
  std::vector<Compute> dq(grad.dq.want.size()), dk(grad.dk.want.size()), dv(grad.dv.want.size());
  std::vector<Compute> dsink(grad.dsink.want.size());
  const Rounding& rules = walk.rules;
  walk.for_each_row([&](int64_t b, int64_t h, int64_t i) {
    row.compute(walk, b, h, i);
    if (row.keys.empty()) return;
    const int64_t at = walk.q_row(b, h, i);
    const double* dout = walk.dout.data() + at * vd;
    const double* q = walk.q.data() + at * d;
    const double* out = forward.out.plain.data() + at * vd;
    const double* out_bound = forward.out.bound.data() + at * vd;
    Compute delta = 0;
    double delta_size = 0, out_error = 0;
    for (int64_t x = 0; x < vd; ++x) {
      delta += Compute(dout[x]) * Compute(out[x]);
      delta_size += std::abs(dout[x] * out[x]);
      out_error += std::abs(dout[x]) * out_bound[x];
    }
    const Rounding::RowError row_error = rules.row_error(
        row.weight_error(walk), forward.lse.bound[size_t(at)], delta_size, out_error);
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
      const Compute dscore = weight * (dweight - delta) * row.slope[j];
      const Rounding::PairError error =
          rules.pair_error(row_error, double(weight), double(row.slope[j]), double(dscore),
                           double(dweight), dweight_size, double(delta));
      for (int64_t x = 0; x < d; ++x) {
        dq[size_t(at * d + x)] += rules.factor(dscore) * Compute(k[x]);
        dk[size_t(key * d + x)] += rules.factor(dscore) * Compute(q[x]);
        grad.dq.bound[size_t(at * d + x)] += error.dscore * std::abs(k[x]);
        grad.dk.bound[size_t(key * d + x)] += error.dscore * std::abs(q[x]);
      }
      for (int64_t x = 0; x < vd; ++x) {
        dv[size_t(key * vd + x)] += rules.factor(weight) * Compute(dout[x]);
        grad.dv.bound[size_t(key * vd + x)] += error.weight * std::abs(dout[x]);
      }
    }
    if (c.has_sink) {
      dsink[size_t(h)] -= row.sink_weight * delta;
      grad.dsink.bound[size_t(h)] += rules.sink_error(row_error, double(row.sink_weight));
    }
  });
  const auto finish = [&](Expected& expected, const std::vector<Compute>& plain, DType dtype,
                          auto storing) {
    for (size_t e = 0; e < plain.size(); ++e) {
      expected.plain[e] = rounded_to(dtype, double(plain[e]));
      expected.bound[e] += storing(expected.want[e]);
    }
  };
  const auto storing = [&](double want) { return rules.storing_gradient_error(want); };
  finish(grad.dq, dq, c.dtype, storing);
  finish(grad.dk, dk, c.dtype, storing);
  finish(grad.dv, dv, c.dtype, storing);
  finish(grad.dsink, dsink, DType::f32,
         [](double want) { return storing_error(DType::f32, want); });
}

}  // namespace

Rounding rounding_of(const Case& c, bool rounds_weights) {
  return {.dtype = c.dtype,
          .rounds_weights = rounds_weights,
          .has_sink = c.has_sink,
          .scale = c.score_scale(),
          .softcap = c.softcap,
          .batch = c.batch,
          .heads = c.heads,
          .q_len = c.q_len,
          .k_len = c.k_len,
          .head_dim = c.head_dim,
          .v_head_dim = c.v_head_dim};
}

ExpectedForward expect_forward(const Case& c, const Pattern& pattern, const AllowedPairs& allowed,
                               const Inputs& in, bool rounds_weights) {
  ReferenceOutput want =
      reference_forward(pattern, in.q.view(), in.k.view(), in.v.view(), in.options, c.offset);
  ExpectedForward expected{make_expected(std::move(want.out)), make_expected(std::move(want.lse))};
  if (!c.normalizer.is_plain_softmax()) {
    bound_sparse_forward(c, allowed, in, expected);
    return expected;
  }
  const CaseWalk walk(c, allowed, in, rounds_weights);
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
  if (!c.normalizer.is_plain_softmax()) {
    bound_sparse_gradients(c, allowed, in, rounds_weights, expected);
    return expected;
  }
  const CaseWalk walk(c, allowed, in, rounds_weights);
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
    if (!expected.is_open.empty() && expected.is_open[e]) continue;
    const double want = expected.want[e], bound = expected.bound[e];
    const ElementVerdict element = judge_element(dtype, got[e], want, bound, expected.plain[e]);
    if (element.is_wrong) return wrong_element(name, e, got[e], want, bound, expected.plain[e]);
    if (worst) *worst = std::max(*worst, element.share);
    got_norm += element.error * element.error;
    plain_norm += element.plain * element.plain;
    bound_norm += element.bound * element.bound;
  }
  return wrong_norm(name, dtype, std::sqrt(got_norm), std::sqrt(plain_norm), std::sqrt(bound_norm));
}

std::string wrong_element(const std::string& name, size_t index, double got, double want,
                          double bound, double plain) {
  if (!std::isfinite(got) || !std::isfinite(want)) {
    return say(name, "[", index, "] is ", got, ", the reference says ", want);
  }
  return say(name, "[", index, "] is ", got, ", the reference says ", want, "; off by ",
             std::abs(got - want), ", rounding explains ", bound, "; a plain loop gives ", plain);
}

std::string wrong_norm(const std::string& name, DType dtype, double got, double plain,
                       double bound) {
  const double allowed = allowed_norm(plain, bound);
  if (!(got > allowed)) return "";
  return say(name, ": off by ", got, " in norm, a plain loop in ", to_string(dtype), " is off by ",
             plain, "; allowed ", allowed);
}

}  // namespace keyhole::test
