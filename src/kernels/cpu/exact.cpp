// src/kernels/cpu/exact.cpp
#include "kernels/cpu/exact.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/dtype.h"
#include "base/weight_rule.h"
#include "kernels/cpu/plan_pairs.h"
#include "kernels/cpu/problem.h"

namespace keyhole::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class Storage>
double dot(const Storage* a, const Storage* b, int64_t size) {
  double sum = 0;
  for (int64_t x = 0; x < size; ++x) sum += double(to_f32(a[x])) * double(to_f32(b[x]));
  return sum;
}

using Rule = SoftmaxRule<NaturalMath<double>>;

// What one pair contributes to the gradients: p to dv, and ds to dq and dk.
struct PairGradient {
  double p, ds;
};
template <class Storage>
PairGradient pair_gradient(const Problem& problem, const Storage* q, const Storage* k,
                           const Storage* v, const Storage* dout, const Storage* out, double lse) {
  const Rule rule = Rule::of(problem.rule);
  const double bent = rule.bend(dot(q, k, problem.head_dim));
  const double p = rule.weight(rule.score(bent), lse);
  const double dp = dot(dout, v, problem.v_head_dim), delta = dot(dout, out, problem.v_head_dim);
  return {p, rule.slope(p) * (dp - delta) * rule.steepness(bent)};
}

template <class Storage>
void store(const std::vector<double>& sum, Storage* row) {
  using T = typename Traits<Storage>::Compute;
  for (size_t x = 0; x < sum.size(); ++x) row[x] = Traits<Storage>::from(T(sum[x]));
}

template <class Storage>
void add(std::vector<double>& sum, double weight, const Storage* row) {
  for (size_t x = 0; x < sum.size(); ++x) sum[x] += weight * double(to_f32(row[x]));
}

}  // namespace

bool attends_to_nothing(const PlanView& plan, int64_t head_index, int64_t query) {
  bool is_empty = true;
  for_each_key(plan, head_index, query, [&](int64_t) { is_empty = false; });
  return is_empty;
}

template <class Storage>
void exact_forward_row(const ForwardArgs& args, int64_t batch, int64_t head, int64_t query) {
  using T = typename Traits<Storage>::Compute;
  const Problem p = problem_of(args);
  const Rule rule = Rule::of(p.rule);
  const int64_t kv_head = head / p.group, head_index = batch * p.heads + head;
  const auto k = rows_of<const Storage>(args.k, batch, kv_head);
  const auto v = rows_of<const Storage>(args.v, batch, kv_head);
  const Storage* q = rows_of<const Storage>(args.q, batch, head)[query];

  std::vector<int64_t> keys;
  std::vector<double> scores;
  const double sink = p.sink != nullptr ? p.sink_of(head) : -kInfinity;
  double top = sink;
  bool has_nan = false;
  for_each_key(args.plan, head_index, query, [&](int64_t key) {
    if (has_nan) return;
    keys.push_back(key);
    scores.push_back(rule.score(rule.bend(dot(q, k[key], p.head_dim))));
    top = std::max(top, scores.back());
    has_nan = std::isnan(scores.back());  // the result will be NaN
  });
  // If the maximum is not finite nothing is subtracted, so that an attended infinity shows.
  const double base = std::isfinite(top) ? top : 0;
  double sum = rule.weight(sink, base);
  for (const double score : scores) sum += rule.weight(score, base);

  std::vector<double> out(size_t(p.v_head_dim), has_nan ? std::nan("") : 0);
  if (!has_nan) {
    for (size_t i = 0; i < keys.size(); ++i) {
      add(out, sum == 0 ? 0 : rule.weight(scores[i], base) / sum, v[keys[i]]);
    }
  }
  store(out, rows_of<Storage>(args.out, batch, head)[query]);
  if (args.lse.is_given()) {
    *rows_of<T>(args.lse, batch, head)[query] = T(base + std::log(sum));
  }
}

template <class Storage>
void exact_query_gradient(const BackwardArgs& args, int64_t batch, int64_t head, int64_t query) {
  using T = typename Traits<Storage>::Compute;
  const Problem p = problem_of(args);
  const int64_t kv_head = head / p.group;
  const auto k = rows_of<const Storage>(args.k, batch, kv_head);
  const auto v = rows_of<const Storage>(args.v, batch, kv_head);
  const Storage* q = rows_of<const Storage>(args.q, batch, head)[query];
  const Storage* dout = rows_of<const Storage>(args.dout, batch, head)[query];
  const Storage* out = rows_of<const Storage>(args.out, batch, head)[query];
  const double lse = double(*rows_of<const T>(args.lse, batch, head)[query]);

  std::vector<double> dq(size_t(p.head_dim), 0);
  bool has_nan = false;
  if (lse != -kInfinity) {
    for_each_key(args.plan, batch * p.heads + head, query, [&](int64_t key) {
      if (has_nan) return;
      const PairGradient pair = pair_gradient(p, q, k[key], v[key], dout, out, lse);
      add(dq, pair.ds, k[key]);
      has_nan = std::isnan(pair.ds);  // every sum is NaN from here on
    });
  }
  store(dq, rows_of<Storage>(args.dq, batch, head)[query]);
}

template <class Storage>
void exact_key_gradient(const BackwardArgs& args, int64_t batch, int64_t kv_head, int64_t key) {
  using T = typename Traits<Storage>::Compute;
  const Problem p = problem_of(args);
  const Storage* k = rows_of<const Storage>(args.k, batch, kv_head)[key];
  const Storage* v = rows_of<const Storage>(args.v, batch, kv_head)[key];
  std::vector<double> dk(size_t(p.head_dim), 0), dv(size_t(p.v_head_dim), 0);
  bool has_nan = false;
  for (int64_t head = kv_head * p.group; head < (kv_head + 1) * p.group; ++head) {
    const auto q = rows_of<const Storage>(args.q, batch, head);
    const auto dout = rows_of<const Storage>(args.dout, batch, head);
    const auto out = rows_of<const Storage>(args.out, batch, head);
    const auto lses = rows_of<const T>(args.lse, batch, head);
    for_each_query(args.plan, batch * p.heads + head, key, [&](int64_t query) {
      const double lse = double(*lses[query]);
      if (has_nan || lse == -kInfinity) return;
      const PairGradient pair = pair_gradient(p, q[query], k, v, dout[query], out[query], lse);
      add(dv, pair.p, dout[query]);
      add(dk, pair.ds, q[query]);
      has_nan = std::isnan(pair.p) && std::isnan(pair.ds);
    });
  }
  store(dk, rows_of<Storage>(args.dk, batch, kv_head)[key]);
  store(dv, rows_of<Storage>(args.dv, batch, kv_head)[key]);
}

#define KEYHOLE_INSTANTIATE(Storage)                                                           \
  template void exact_forward_row<Storage>(const ForwardArgs&, int64_t, int64_t, int64_t);     \
  template void exact_query_gradient<Storage>(const BackwardArgs&, int64_t, int64_t, int64_t); \
  template void exact_key_gradient<Storage>(const BackwardArgs&, int64_t, int64_t, int64_t);
KEYHOLE_INSTANTIATE(float)
KEYHOLE_INSTANTIATE(double)
KEYHOLE_INSTANTIATE(Half)
KEYHOLE_INSTANTIATE(BFloat16)
#undef KEYHOLE_INSTANTIATE

}  // namespace keyhole::cpu
