// course/04_patterns/definition.h
// What the programs of this chapter share: attention by its definition, attention by the library,
// and how much processor time a call takes.
#pragma once

#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <vector>

#include "common/tensors.h"

namespace course {

using Values = std::vector<float>;

// One head of one batch entry: q [q_len][head_dim], k and v [k_len][head_dim].
struct Head {
  int64_t q_len, k_len, head_dim;
  Values q, k, v;
};

inline Head random_head(int64_t q_len, int64_t k_len, int64_t head_dim) {
  const auto values = [head_dim](int64_t rows, unsigned seed) {
    return random_values(static_cast<std::size_t>(rows * head_dim), seed);
  };
  return {q_len, k_len, head_dim, values(q_len, 1), values(k_len, 2), values(k_len, 3)};
}

// q . k / sqrt(head_dim)
inline double score(const Head& head, int64_t query, int64_t key) {
  double sum = 0;
  for (int64_t d = 0; d < head.head_dim; ++d) {
    sum += double{head.q[query * head.head_dim + d]} * head.k[key * head.head_dim + d];
  }
  return sum / std::sqrt(static_cast<double>(head.head_dim));
}

// The definition: softmax over the keys that `allows(query, key)` lets through, times v; in fp64. A
// query without keys gets zeros.
template <class Rule>
Values by_definition(const Head& head, const Rule& allows) {
  Values out;
  std::vector<double> row(head.head_dim);
  for (int64_t query = 0; query < head.q_len; ++query) {
    double sum = 0;
    std::fill(row.begin(), row.end(), 0);
    for (int64_t key = 0; key < head.k_len; ++key) {
      if (!allows(query, key)) continue;
      const double weight = std::exp(score(head, query, key));  // small scores: no maximum needed
      sum += weight;
      for (int64_t d = 0; d < head.head_dim; ++d)
        row[d] += weight * head.v[key * head.head_dim + d];
    }
    for (const double value : row) out.push_back(static_cast<float>(sum > 0 ? value / sum : 0));
  }
  return out;
}

// The same pairs by the pattern's own answer, pair by pair.
inline Values by_definition(const Head& head, const keyhole::Pattern& pattern) {
  const keyhole::HeadPattern asked =
      pattern.for_head({.q_len = head.q_len, .k_len = head.k_len, .offset = {}});
  return by_definition(head,
                       [&asked](int64_t query, int64_t key) { return asked.allows(query, key); });
}

// Compressed sparse rows: query q attends to keys[offsets[q]] ... keys[offsets[q + 1] - 1].
struct Csr {
  std::vector<int32_t> offsets = {0}, keys;
};

inline Csr csr_of(const keyhole::Pattern& pattern, int64_t length) {
  const keyhole::HeadPattern asked =
      pattern.for_head({.q_len = length, .k_len = length, .offset = {}});
  Csr rows;
  for (int64_t query = 0; query < length; ++query) {
    for (int64_t key = 0; key < length; ++key) {
      if (asked.allows(query, key)) rows.keys.push_back(static_cast<int32_t>(key));
    }
    rows.offsets.push_back(static_cast<int32_t>(rows.keys.size()));
  }
  return rows;
}

inline keyhole::TensorView view(const Values& values, int64_t length, int64_t head_dim) {
  return keyhole::TensorView(values.data(), keyhole::DType::f32, {1, 1, length, head_dim});
}

// The library's kernels, on one thread.
inline void run_library(const Head& head, const keyhole::Lists& lists, Values& out,
                        Values* lse = nullptr) {
  keyhole::AttentionOptions options;
  options.threads = 1;
  out.resize(head.q.size());
  keyhole::TensorView lse_view;
  if (lse != nullptr) {
    lse->resize(head.q_len);
    lse_view = keyhole::TensorView(lse->data(), keyhole::DType::f32, {1, 1, head.q_len});
  }
  keyhole::attention_forward(view(head.q, head.q_len, head.head_dim),
                             view(head.k, head.k_len, head.head_dim),
                             view(head.v, head.k_len, head.head_dim), lists,
                             view(out, head.q_len, head.head_dim), lse_view, options);
}

inline Values by_library(const Head& head, const keyhole::Lists& lists) {
  Values out;
  run_library(head, lists, out);
  return out;
}

// Milliseconds of processor time of one call that uses one thread. This clock stands still while
// another program has the processor. It counts microseconds, so short calls are timed in groups.
template <class Function>
double cpu_milliseconds(Function&& run, double seconds = 0.03) {
  const auto mean_of = [&run](int calls) {
    const std::clock_t begin = std::clock();
    for (int i = 0; i < calls; ++i) run();
    return 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / calls;
  };
  double best = std::max(mean_of(1), 1e-3);  // the first call also fills the caches
  const int calls = static_cast<int>(std::clamp(1 / best, 1.0, 1000.0));
  double spent = 0;
  for (int groups = 0; groups < 3 || (spent < 1e3 * seconds && groups < 1000); ++groups) {
    const double mean = std::max(mean_of(calls), 1e-6);
    spent += mean * calls;
    best = std::min(best, mean);
  }
  return best;
}

}  // namespace course
