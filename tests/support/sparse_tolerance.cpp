// tests/support/sparse_tolerance.cpp
#include "support/sparse_tolerance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/sparse_weights.h"
#include "support/case_walk.h"

namespace keyhole::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A weight or slope with how far rounding may move it.
struct Around {
  double value = 0, error = 0;
};

// One row: its keys that have weight, or may have it after rounding.
struct Row {
  std::vector<int64_t> keys;
  std::vector<double> score, steepness;
  std::vector<Around> weight, slope;
  Around sink_weight, sink_slope;
  double lambda = 0, score_error = 0, lambda_error = 0;
  int64_t attended = 0;
  bool is_open = false;  // top_k may take other keys by rounding alone: any result is right
};

void open(Expected& expected, size_t element) {
  if (expected.is_open.empty()) expected.is_open.resize(expected.want.size());
  expected.is_open[element] = true;
}

// Of one key.
struct Weighed {
  Around weight, slope;
};

Weighed weigh_around(const CaseWalk& walk, double score, double lambda, double error) {
  const double alpha = walk.c.normalizer.alpha, unit = walk.rules.unit();
  struct Pair {
    double weight = 0, slope = 0;
  };
  // A kernel of fp64 may find weight where the reference in fp64 calls a score the threshold.
  const auto weigh_as = [&]<class Sum>(Sum distance) {
    Sum weight = 0, slope = 0;
    weigh(alpha, distance, Sum(0), weight, slope);
    return Pair{double(weight), double(slope)};
  };
  const auto at = [&](double distance) {
    return walk.c.dtype == DType::f64 ? weigh_as(static_cast<long double>(distance))
                                      : weigh_as(distance);
  };
  // 1 + (alpha - 1) (score - lambda) is rounded as well.
  const double rounding = 4 * unit * (1 + std::abs(score - lambda)) +
                          (alpha > 1 ? 4 * unit / std::max(alpha - 1, 0.02) : 0);
  const Pair here = at(score - lambda);
  const Pair low = at(score - lambda - error - rounding);
  const Pair high = at(score - lambda + error + rounding);
  // One too small to be represented, over x, is lost as a whole.
  const auto around = [&](double value, double from, double to, double x) {
    // Powers by logarithms are off by what their argument is.
    const double power = 8 * unit * value * (1 + std::abs(std::log(std::max(value, 1e-300))));
    const double lost = value > 0 && x > 0 ? smallest_step(walk.rules.sum_dtype()) / x : 0;
    return Around{value, std::max(to - value, value - from) + power + lost};
  };
  // A slope, which is weight / x, is lost with its weight.
  const double x = alpha > 1 ? std::min(1., 1 + (alpha - 1) * (score - lambda)) : 1;
  return {around(here.weight, low.weight, high.weight, 1),
          around(here.slope, low.slope, high.slope, x)};
}

bool is_finite_value(const CaseWalk& walk, int64_t b, int64_t h, int64_t key) {
  const int64_t columns = walk.c.v_head_dim;
  const double* v = walk.v.data() + walk.k_row(b, h, key) * columns;
  return std::all_of(v, v + columns, [](double x) { return std::isfinite(x); });
}

template <class Compute>
Row row_of(const CaseWalk& walk, int64_t b, int64_t h, int64_t i) {
  const Case& c = walk.c;
  Row all;
  double largest = 0;
  const double* q = walk.q.data() + walk.q_row(b, h, i) * c.head_dim;
  const uint8_t* may_see = walk.allowed.row(b, h, i);
  for (int64_t j = 0; j < c.k_len; ++j) {
    if (!may_see[j]) continue;
    const double* k = walk.k.data() + walk.k_row(b, h, j) * c.head_dim;
    Compute sum = 0;
    double size = 0;
    for (int64_t x = 0; x < c.head_dim; ++x) {
      sum += Compute(q[x]) * Compute(k[x]);
      size += std::abs(q[x] * k[x]);
    }
    const auto [score, steepness] = walk.rules.plain_score(sum);
    largest = std::max(largest, size * std::abs(walk.rules.scale));
    all.keys.push_back(j);
    all.score.push_back(double(score));
    all.steepness.push_back(double(steepness));
  }
  const double sink = c.has_sink ? walk.sink[size_t(h)] : -kInfinity;
  const auto solved = sparse_weights(c.normalizer, all.score, sink);
  Row row;
  row.attended = int64_t(all.keys.size());
  row.lambda = solved.lambda;
  const double unit = walk.rules.unit();
  if (c.softcap > 0) largest += 4;
  row.score_error = 2 * unit * sum_factor(c.head_dim) * largest;
  row.lambda_error = row.score_error + unit * (8 + std::sqrt(double(row.attended)) / 4) +
                     4 * unit * std::abs(row.lambda) + (c.has_sink ? 4 * unit * std::abs(sink) : 0);
  if (!std::isfinite(row.lambda_error)) row.lambda_error = kInfinity;
  const double error = row.score_error + row.lambda_error;
  // Among the keys that top_k leaves out, one that could take the place of the last it takes.
  double last = kInfinity;
  const bool cuts = c.normalizer.top_k > 0 && row.attended > c.normalizer.top_k;
  if (cuts) {
    std::vector<double> sorted = all.score;
    std::nth_element(sorted.begin(), sorted.begin() + (c.normalizer.top_k - 1), sorted.end(),
                     std::greater<>());
    last = sorted[size_t(c.normalizer.top_k - 1)];
    const Around of_last = weigh_around(walk, last, row.lambda, error).weight;
    const bool has_weight = of_last.value + of_last.error > 0;
    int64_t near = 0;
    for (const double score : all.score) near += score >= last - 2 * row.score_error ? 1 : 0;
    row.is_open = has_weight && row.score_error > 0 && near > c.normalizer.top_k;
  }
  // How many of those that equal the last are taken.
  int64_t num_equal = c.normalizer.top_k;
  for (const double score : all.score) num_equal -= score > last ? 1 : 0;
  for (size_t j = 0; j < all.keys.size(); ++j) {
    auto [w, u] = weigh_around(walk, all.score[j], row.lambda, error);
    // Left out, not only without weight: behind the last, or equal to it with a larger key.
    const bool is_equal = cuts && all.score[j] == last;
    if (cuts && (all.score[j] < last || (is_equal && num_equal <= 0))) w = u = {};
    num_equal -= is_equal ? 1 : 0;
    if (w.value == 0 && w.error == 0 && u.error == 0) continue;
    // A weight that the kernel's numbers cannot hold may be lost, and then its value is not read.
    const double smallest = c.dtype == DType::f64 ? std::numeric_limits<double>::min()
                                                  : double(std::numeric_limits<float>::min());
    if (w.value < smallest && !is_finite_value(walk, b, h, all.keys[j])) row.is_open = true;
    row.keys.push_back(all.keys[j]);
    row.score.push_back(all.score[j]);
    row.steepness.push_back(all.steepness[j]);
    row.weight.push_back(w);
    row.slope.push_back(u);
  }
  if (c.has_sink) {
    const Weighed weighed = weigh_around(walk, sink, row.lambda, error);
    row.sink_weight = weighed.weight;
    row.sink_slope = weighed.slope;
  }
  return row;
}

template <class Compute>
void walk_forward(const CaseWalk& walk, ExpectedForward& expected) {
  const Case& c = walk.c;
  const Rounding& rules = walk.rules;
  walk.for_each_row([&](int64_t b, int64_t h, int64_t i) {
    const Row row = row_of<Compute>(walk, b, h, i);
    const int64_t at = walk.q_row(b, h, i);
    const double terms = rules.unit() * sum_factor(int64_t(row.keys.size()));
    for (int64_t x = 0; x < c.v_head_dim; ++x) {
      Compute plain = 0;
      double bound = 0;
      for (size_t j = 0; j < row.keys.size(); ++j) {
        const double v = walk.v[size_t(walk.k_row(b, h, row.keys[j]) * c.v_head_dim + x)];
        plain += rules.factor(Compute(row.weight[j].value)) * Compute(v);
        bound += (2 * row.weight[j].error + (terms + rules.factor_unit()) * row.weight[j].value +
                  rules.lost_factor()) *
                 std::abs(v);
      }
      const size_t e = size_t(at * c.v_head_dim + x);
      expected.out.plain[e] = rounded_to(c.dtype, double(plain));
      expected.out.bound[e] = bound + storing_error(c.dtype, expected.out.want[e]);
      if (row.is_open) open(expected.out, e);
    }
    expected.lse.plain[size_t(at)] = rounded_to(rules.sum_dtype(), row.lambda);
    expected.lse.bound[size_t(at)] = 2 * row.lambda_error;
    if (row.is_open) open(expected.lse, size_t(at));
  });
}

template <class Compute>
void walk_backward(const CaseWalk& walk, ExpectedGradients& grad) {
  const Case& c = walk.c;
  const Rounding& rules = walk.rules;
  const int64_t d = c.head_dim, vd = c.v_head_dim;
  const double unit = rules.unit();
  std::vector<Compute> dq(grad.dq.want.size()), dk(grad.dk.want.size()), dv(grad.dv.want.size());
  std::vector<Compute> dsink(grad.dsink.want.size());
  const double of_factor = rules.factor_unit();
  const double in_row = unit * sum_factor(c.k_len) + of_factor;
  const double in_key = unit * sum_factor(c.q_len * c.heads) + of_factor;
  walk.for_each_row([&](int64_t b, int64_t h, int64_t i) {
    const Row row = row_of<Compute>(walk, b, h, i);
    if (row.attended == 0) return;
    const int64_t at = walk.q_row(b, h, i);
    const double* dout = walk.dout.data() + at * vd;
    const double* q = walk.q.data() + at * d;
    const size_t count = row.keys.size();
    std::vector<Compute> dweight(count);
    std::vector<double> dweight_error(count);
    double sum = 0, slopes = row.sink_slope.value, slopes_error = row.sink_slope.error;
    for (size_t j = 0; j < count; ++j) {
      const double* v = walk.v.data() + walk.k_row(b, h, row.keys[j]) * vd;
      double size = 0;
      for (int64_t x = 0; x < vd; ++x) {
        dweight[j] += Compute(dout[x]) * Compute(v[x]);
        size += std::abs(dout[x] * v[x]);
      }
      dweight_error[j] = unit * sum_factor(vd) * size + smallest_step(rules.sum_dtype());
      if (row.slope[j].value == 0 && row.slope[j].error == 0) continue;
      sum += row.slope[j].value == 0 ? 0 : row.slope[j].value * double(dweight[j]);
      slopes += row.slope[j].value;
      slopes_error += row.slope[j].error;
    }
    const double delta = slopes > 0 ? sum / slopes : 0;
    // d delta = sum (du (g - delta) + u dg) / sum u
    double delta_error = row.sink_slope.error * std::abs(delta);
    for (size_t j = 0; j < count; ++j) {
      delta_error += row.slope[j].error * std::abs(double(dweight[j]) - delta) +
                     (row.slope[j].value + row.slope[j].error) *
                         (dweight_error[j] +
                          (in_row - of_factor) * (std::abs(double(dweight[j])) + std::abs(delta)));
    }
    delta_error /= std::max(slopes - slopes_error, 0.0);
    if (row.is_open) delta_error = kInfinity;
    for (size_t j = 0; j < count; ++j) {
      const int64_t key = walk.k_row(b, h, row.keys[j]);
      const double* k = walk.k.data() + key * d;
      const double difference = std::abs(double(dweight[j]) - delta);
      const double difference_error = dweight_error[j] + delta_error +
                                      2 * unit * (std::abs(double(dweight[j])) + std::abs(delta));
      const Around& u = row.slope[j];
      const Compute dscore =
          Compute(u.value) * Compute(double(dweight[j]) - delta) * Compute(row.steepness[j]);
      const double steepness = std::abs(row.steepness[j]);
      // 1 - tanh^2 cancels, and moves with the score.
      const double steepness_error =
          c.softcap > 0 ? std::abs(rules.scale) * (16 * unit + 2 * row.score_error / c.softcap)
                        : 4 * unit * steepness;
      const double error =
          (u.error * steepness + u.value * steepness_error) * (difference + difference_error) +
          (u.value + u.error) * steepness * difference_error;
      const double lost = rules.rounds_weights ? rules.lost_factor() : 0;
      const double w_error = row.is_open ? kInfinity : 2 * row.weight[j].error + lost;
      const double dscore_size = std::abs(double(dscore));
      // Score gradients are rounded before they are multiplied by the scale.
      const double dscore_error = 2 * error + lost * std::abs(rules.scale);
      for (int64_t x = 0; x < d; ++x) {
        dq[size_t(at * d + x)] += rules.factor(dscore) * Compute(k[x]);
        dk[size_t(key * d + x)] += rules.factor(dscore) * Compute(q[x]);
        grad.dq.bound[size_t(at * d + x)] += (dscore_error + in_row * dscore_size) * std::abs(k[x]);
        grad.dk.bound[size_t(key * d + x)] +=
            (dscore_error + in_key * dscore_size) * std::abs(q[x]);
      }
      for (int64_t x = 0; x < vd; ++x) {
        dv[size_t(key * vd + x)] += rules.factor(Compute(row.weight[j].value)) * Compute(dout[x]);
        grad.dv.bound[size_t(key * vd + x)] +=
            (w_error + in_key * row.weight[j].value) * std::abs(dout[x]);
      }
    }
    if (row.is_open) {  // any attended key may get something
      for (int64_t j = 0; j < c.k_len; ++j) {
        if (!walk.allowed(b, h, i, j)) continue;
        const int64_t key = walk.k_row(b, h, j);
        for (int64_t x = 0; x < d; ++x) open(grad.dk, size_t(key * d + x));
        for (int64_t x = 0; x < vd; ++x) open(grad.dv, size_t(key * vd + x));
      }
      for (int64_t x = 0; x < d; ++x) open(grad.dq, size_t(at * d + x));
      if (c.has_sink) open(grad.dsink, size_t(h));
    }
    if (c.has_sink) {
      dsink[size_t(h)] -= Compute(row.sink_slope.value * delta);
      grad.dsink.bound[size_t(h)] +=
          row.sink_slope.error * (std::abs(delta) + delta_error) +
          row.sink_slope.value * (delta_error + in_key * std::abs(delta));
    }
  });
  const auto finish = [&](Expected& expected, const std::vector<Compute>& plain, DType dtype) {
    for (size_t e = 0; e < plain.size(); ++e) {
      expected.plain[e] = rounded_to(dtype, double(plain[e]));
      expected.bound[e] +=
          rules.storing_gradient_error(expected.want[e]) + storing_error(dtype, expected.want[e]);
      // inf - inf and 0 * inf, where something that is not finite is near the threshold
      if (std::isnan(expected.bound[e])) expected.bound[e] = kInfinity;
    }
  };
  finish(grad.dq, dq, c.dtype);
  finish(grad.dk, dk, c.dtype);
  finish(grad.dv, dv, c.dtype);
  finish(grad.dsink, dsink, DType::f32);
}

}  // namespace

void bound_sparse_forward(const Case& c, const AllowedPairs& allowed, const Inputs& in,
                          bool rounds_weights, ExpectedForward& expected) {
  const CaseWalk walk(c, allowed, in, rounds_weights);
  c.dtype == DType::f64 ? walk_forward<double>(walk, expected)
                        : walk_forward<float>(walk, expected);
}

void bound_sparse_gradients(const Case& c, const AllowedPairs& allowed, const Inputs& in,
                            bool rounds_weights, ExpectedGradients& expected) {
  const CaseWalk walk(c, allowed, in, rounds_weights);
  c.dtype == DType::f64 ? walk_backward<double>(walk, expected)
                        : walk_backward<float>(walk, expected);
}

}  // namespace keyhole::test
