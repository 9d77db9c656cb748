// src/kernels/cpu/entmax_exact.cpp
#include "kernels/cpu/entmax_exact.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/dtype.h"
#include "base/entmax.h"
#include "kernels/cpu/plan_pairs.h"

namespace keyhole::cpu {
namespace {

bool has_no_weight_at_all(double score) {
  return std::isnan(score) || score == std::numeric_limits<double>::infinity();
}

// The top_k first of the keys, in ascending order of their place.
std::vector<size_t> selected(const ExactRow& row, int64_t top_k) {
  std::vector<size_t> places(row.keys.size());
  std::iota(places.begin(), places.end(), 0);
  if (top_k == 0 || int64_t(places.size()) <= top_k) return places;
  std::nth_element(places.begin(), places.begin() + top_k, places.end(), [&](size_t a, size_t b) {
    return ranks_before(row.scores[a], row.keys[a], row.scores[b], row.keys[b]);
  });
  places.resize(size_t(top_k));
  std::sort(places.begin(), places.end());
  return places;
}

}  // namespace

template <class Storage>
ExactRow exact_entmax_row(const TensorView& q, const TensorView& k, const Problem& p,
                          const Head& head, int64_t query, const double* given_lambda) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const auto rule = SoftmaxRule<NaturalMath<double>>::of(p.rule);
  const Storage* const q_row = rows_of<const Storage>(q, head.batch, head.head)[query];
  const auto k_rows = rows_of<const Storage>(k, head.batch, head.kv_head);
  const double sink = p.sink != nullptr ? p.sink_of(head.head) : -INFINITY;
  ExactRow all;
  bool is_nan =
      has_no_weight_at_all(sink) || (given_lambda != nullptr && std::isnan(*given_lambda));
  for_each_key(p.plan, head.index(p), query, [&](int64_t key) {
    double product = 0;
    for (int64_t x = 0; x < p.head_dim; ++x) {
      product += double(to_f32(q_row[x])) * double(to_f32(k_rows[key][x]));
    }
    all.keys.push_back(int32_t(key));
    all.scores.push_back(rule.score(rule.bend(product)));
    is_nan = is_nan || has_no_weight_at_all(all.scores.back());
  });
  if (is_nan) {
    all.lambda = kNan;
    all.weights.assign(all.keys.size(), kNan);
    all.slopes.assign(all.keys.size(), kNan);
    return all;
  }
  const EntmaxPower power = EntmaxPower::of(p.rule.normalizer.alpha);
  ExactRow row;
  for (const size_t j : selected(all, p.rule.normalizer.top_k)) {
    if (all.scores[j] == -INFINITY) continue;
    row.keys.push_back(all.keys[j]);
    row.scores.push_back(all.scores[j]);
  }
  std::vector<double> list = row.scores;
  if (sink != -INFINITY) list.push_back(sink);
  Lambda<double> lambda = {given_lambda != nullptr ? *given_lambda : 0, 0};
  if (given_lambda == nullptr) lambda = solve_entmax(power, list.data(), int64_t(list.size()));
  row.lambda = lambda.value();
  const auto weigh = EntmaxRule<EntmaxMath<double>>::of(power);
  size_t kept = 0;
  for (size_t j = 0; j < row.keys.size(); ++j) {
    const auto terms = weigh.terms((row.scores[j] - lambda.top) - lambda.above);
    if (terms.weight == 0) continue;
    row.keys[kept] = row.keys[j];
    row.scores[kept++] = row.scores[j];
    row.weights.push_back(terms.weight);
    row.slopes.push_back(terms.slope);
  }
  row.keys.resize(kept);
  row.scores.resize(kept);
  return row;
}

#define KEYHOLE_INSTANTIATE(Storage)           \
  template ExactRow exact_entmax_row<Storage>( \
      const TensorView&, const TensorView&, const Problem&, const Head&, int64_t, const double*);
KEYHOLE_INSTANTIATE(float)
KEYHOLE_INSTANTIATE(double)
KEYHOLE_INSTANTIATE(Half)
KEYHOLE_INSTANTIATE(BFloat16)
#undef KEYHOLE_INSTANTIATE

}  // namespace keyhole::cpu
