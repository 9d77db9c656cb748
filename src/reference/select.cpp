// src/reference/select.cpp
#include "reference/select.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "base/weight_rule.h"

namespace keyhole {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Any element of a tensor; those that are not given are 1.
double at(const TensorView& tensor, int64_t a, int64_t b, int64_t c, int64_t d = 0) {
  if (!tensor.is_given()) return 1;
  return with_index_storage(tensor.dtype, [&](auto storage) -> double {
    const int64_t place = a * tensor.strides[0] + b * tensor.strides[1] + c * tensor.strides[2] +
                          (tensor.rank == 4 ? d * tensor.strides[3] : 0);
    return double(to_f32(static_cast<const decltype(storage)*>(tensor.data)[place]));
  });
}

// Sums with many terms are long double. q and k have one dtype.
double product(const TensorView& q, int64_t head, const TensorView& k, int64_t k_head,
               int64_t batch, int64_t query, int64_t key) {
  return with_index_storage(q.dtype, [&](auto storage) -> double {
    const auto row_of = [&](const TensorView& tensor, int64_t h, int64_t i) {
      return static_cast<const decltype(storage)*>(tensor.data) + batch * tensor.strides[0] +
             h * tensor.strides[1] + i * tensor.strides[2];
    };
    const auto *a = row_of(q, head, query), *b = row_of(k, k_head, key);
    long double sum = 0;
    for (int64_t x = 0; x < q.shape[3]; ++x) {
      sum += static_cast<long double>(to_f32(a[x * q.strides[3]])) * to_f32(b[x * k.strides[3]]);
    }
    return double(sum);
  });
}

struct Sizes {
  int64_t batch, heads, groups, q_len, entries, head_dim;
  int64_t per_group() const { return heads / groups; }
  int64_t row(int64_t b, int64_t g, int64_t t) const { return (b * groups + g) * q_len + t; }
};
Sizes sizes_of(const IndexerView& indexer) {
  const int64_t *q = indexer.q.shape, *k = indexer.k.shape;
  return {q[0], q[1], k[1], q[2], k[2], q[3]};
}

template <class Visit>
void for_each_row(int64_t batch, int64_t groups, int64_t q_len, Visit visit) {
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t t = 0; t < q_len; ++t) visit(b, g, t);
    }
  }
}

// relu as torch has it: NaN stays NaN.
double relu(double x) { return x < 0 ? 0 : x; }

double index_score(const IndexerView& indexer, int64_t b, int64_t g, int64_t t, int64_t s) {
  const int64_t heads = sizes_of(indexer).per_group();
  long double sum = 0;
  for (int64_t j = g * heads; j < (g + 1) * heads; ++j) {
    sum += static_cast<long double>(at(indexer.w, b, j, t)) *
           relu(product(indexer.q, j, indexer.k, g, b, t, s));
  }
  return double(sum) * at(indexer.k_scale, b, g, s);
}

}  // namespace

std::vector<double> reference_index_scores(const IndexerView& indexer,
                                           const EntryPredicate& visible) {
  const Sizes n = sizes_of(indexer);
  std::vector<double> scores;
  for_each_row(n.batch, n.groups, n.q_len, [&](int64_t b, int64_t g, int64_t t) {
    for (int64_t s = 0; s < n.entries; ++s) {
      const bool is_visible = !visible || visible(b, g, t, s);
      scores.push_back(is_visible ? index_score(indexer, b, g, t, s) : -kInfinity);
    }
  });
  return scores;
}

ReferenceSelection reference_top_k(const TensorView& scores, int64_t k,
                                   const EntryPredicate& visible, const EntryPredicate& always,
                                   bool takes_short_rows) {
  ReferenceSelection selection;
  for_each_row(
      scores.shape[0], scores.shape[1], scores.shape[2], [&](int64_t b, int64_t g, int64_t t) {
        std::vector<int32_t> first, others, all;
        std::vector<double> row(static_cast<size_t>(scores.shape[3]));
        for (int64_t s = 0; s < scores.shape[3]; ++s) {
          if (visible && !visible(b, g, t, s)) continue;
          all.push_back(int32_t(s));
          if (always && always(b, g, t, s)) {
            first.push_back(int32_t(s));
          } else if (row[size_t(s)] = at(scores, b, g, t, s); row[size_t(s)] > -kInfinity) {
            others.push_back(int32_t(s));
          }
        }
        // A stable sort. std::stable_sort uses what is deprecated in C++20.
        std::ranges::sort(others, [&](int32_t a, int32_t c) {
          const double left = row[size_t(a)], right = row[size_t(c)];
          return left != right ? left > right : a < c;
        });
        first.insert(first.end(), others.begin(), others.end());
        if (takes_short_rows && int64_t(all.size()) <= k) first = all;
        if (int64_t(first.size()) > k) first.resize(size_t(k));
        std::ranges::sort(first);
        selection.rows.push_back(first);
      });
  return selection;
}

namespace {

// One row of the loss: what is listed, scores of the indexer, weights of the attention.
struct LossRow {
  std::vector<int64_t> entries;
  std::vector<double> scores, weights;
  double lse = -kInfinity, total = 0;  // of scores; of weights
};

LossRow loss_row(const IndexerView& indexer, const AttentionTarget& target,
                 const EntryPredicate& listed, int64_t b, int64_t g, int64_t t) {
  const int64_t heads = target.q.shape[1] / indexer.k.shape[1];
  const int64_t per_kv_head = target.q.shape[1] / target.k.shape[1];
  const double scale = target.scale.value_or(1 / std::sqrt(double(target.q.shape[3])));
  LossRow row;
  long double total = 0;
  for (int64_t s = 0; s < target.k.shape[2]; ++s) {
    if (!listed(b, g, t, s)) continue;
    double weight = 0;
    for (int64_t h = g * heads; h < (g + 1) * heads; ++h) {
      double score = scale * product(target.q, h, target.k, h / per_kv_head, b, t, s);
      if (target.softcap > 0) score = target.softcap * std::tanh(score / target.softcap);
      weight += std::exp(score - at(target.lse, b, h, t));
    }
    const int64_t entry = s / target.keys_per_entry;
    if (row.entries.empty() || row.entries.back() != entry) {
      row.entries.push_back(entry);
      row.scores.push_back(index_score(indexer, b, g, t, entry));
      row.weights.push_back(0);
    }
    row.weights.back() += weight;
    total += weight;
  }
  if (row.entries.empty()) return row;
  const double top = *std::ranges::max_element(row.scores);
  long double sum = 0;
  for (const double score : row.scores) sum += std::exp(score - top);
  row.lse = top + std::log(double(sum));
  row.total = double(total);
  return row;
}

}  // namespace

ReferenceIndexLoss reference_index_loss(const IndexerView& indexer, const AttentionTarget& target,
                                        const EntryPredicate& listed,
                                        const std::vector<double>& dloss) {
  const Sizes n = sizes_of(indexer);
  ReferenceIndexLoss result;
  result.dq.assign(size_t(n.batch * n.heads * n.q_len * n.head_dim), 0);
  result.dk.assign(size_t(n.batch * n.groups * n.entries * n.head_dim), 0);
  result.dw.assign(size_t(n.batch * n.heads * n.q_len), 0);
  for_each_row(n.batch, n.groups, n.q_len, [&](int64_t b, int64_t g, int64_t t) {
    const LossRow row = loss_row(indexer, target, listed, b, g, t);
    double loss = 0;
    for (size_t i = 0; i < row.entries.size() && row.total > 0; ++i) {
      const int64_t s = row.entries[i];
      const double p = row.weights[i] / row.total;
      const double log_guess = row.scores[i] - row.lse;
      if (p > 0) loss += p * (std::log(p) - log_guess);
      const double dscore =
          dloss[size_t(n.row(b, g, t))] * (std::exp(log_guess) - p) * at(indexer.k_scale, b, g, s);
      for (int64_t j = g * n.per_group(); j < (g + 1) * n.per_group(); ++j) {
        const double dot = product(indexer.q, j, indexer.k, g, b, t, s);
        if (!(dot > 0)) continue;
        const int64_t query = (b * n.heads + j) * n.q_len + t;
        const int64_t entry = (b * n.groups + g) * n.entries + s;
        result.dw[size_t(query)] += dscore * dot;
        const double ddot = dscore * at(indexer.w, b, j, t);
        for (int64_t x = 0; x < n.head_dim; ++x) {
          result.dq[size_t(query * n.head_dim + x)] += ddot * at(indexer.k, b, g, s, x);
          result.dk[size_t(entry * n.head_dim + x)] += ddot * at(indexer.q, b, j, t, x);
        }
      }
    }
    result.loss.push_back(loss);
    result.stats.push_back(row.lse);
    result.stats.push_back(row.total);
  });
  return result;
}

}  // namespace keyhole
