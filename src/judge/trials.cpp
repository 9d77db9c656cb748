// src/judge/trials.cpp
// The table of trials. Tolerance cannot see one wrong key in thousands, so that two probes look at
// the mask itself: count (q = 0: exp(lse) is the number of keys) and spike (one key at an edge of
// the mask carries nearly all the weight). Entmax and top_k go through the same trials, and through
// two of their own.
#include "judge/trials.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "judge/problem.h"
#include "reference/attention.h"

namespace keyhole::judge {
namespace {

std::vector<int64_t> queries_to_check(const Subject& subject) {
  return rows_to_check(subject.q_len, kLongestFullyChecked, /*count=*/32, subject.seed + 2);
}

// The kernel runs first: the reference must not leave the right answer in memory. A backward pass
// starts from what the reference gives of the forward pass.
Finding compare(Problem& problem, TileShape tile) {
  const Answer answer = problem.answer();
  const KernelEntry& kernel = problem.kernel;
  const bool is_forward = kernel.operation == Operation::forward;
  if (!is_forward) {
    const ReferenceOutput exact = reference_forward(answer.pattern, answer.q, answer.k, answer.v,
                                                    answer.options, answer.offset);
    problem.o.out.fill([&](int64_t i) { return exact.out[size_t(i)]; });
    problem.o.lse.fill([&](int64_t i) { return exact.lse[size_t(i)]; });
  }
  problem.run(tile);
  Finding finding = (is_forward ? judge_forward : judge_backward)(
      kernel, answer, queries_to_check(problem.subject));
  problem.expect_intact(finding);
  return finding;
}

// One key of each head is NaN: queries that attend to it must say so, the others must not notice.
Finding forward_nan_key(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.randomise();
  for (int64_t head = 0; head < subject.batch * subject.kv_heads && subject.k_len > 0; ++head) {
    problem.spoil_key(head * subject.k_len + problem.random.below(subject.k_len));
  }
  return compare(problem, tile);
}

// q = 0: lse, or lambda, tells the number of keys, and no rounding hides one of them.
Finding forward_count(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.has_equal_terms = true;
  problem.randomise();
  problem.in.q.fill(0), problem.in.v.fill(1);
  return compare(problem, tile);
}

// Keys where the mask of some query begins or ends, and their neighbours outside.
int64_t edge_key(Problem& problem, int64_t b, int64_t h) {
  const Subject& subject = problem.subject;
  const int64_t query = problem.random.below(subject.q_len);
  std::vector<int64_t> edges = {0, subject.k_len - 1};
  for (int64_t key = 1; key < subject.k_len; ++key) {
    if (problem.attends(b, h, query, key) != problem.attends(b, h, query, key - 1)) {
      edges.push_back(key - 1), edges.push_back(key);
    }
  }
  return edges[size_t(problem.random.below(int64_t(edges.size())))];
}

// One key of each head has 95 % of the weight: e^3 times that of all others together.
Finding forward_spike(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  if (subject.q_len == 0 || subject.k_len == 0 || subject.head_dim == 0) return {};
  Problem problem(subject, kernel);
  problem.in.q.fill(1), problem.in.k.fill(0), problem.in.v.fill(0);
  const int64_t group = subject.heads / subject.kv_heads;
  const double logit = std::log(double(subject.k_len)) + 3;
  for (int64_t head = 0; head < subject.batch * subject.kv_heads; ++head) {
    const int64_t b = head / subject.kv_heads, h = head % subject.kv_heads;
    const int64_t row = problem.k_row(b, h, edge_key(problem, b, h * group));
    problem.in.k.set(row * subject.head_dim, logit / *problem.options.scale);
    for (int64_t x = 0; x < subject.v_head_dim; ++x)
      problem.in.v.set(row * subject.v_head_dim + x, 1);
  }
  return compare(problem, tile);
}

// ---- the keys that have weight, of entmax and top_k ----

// Of a score, by rounding, in any dtype: inputs are what they are, products are added in fp32.
constexpr double kScoreError = 1e-4;

ReferenceRow row_of(Problem& problem, int64_t b, int64_t h, int64_t query) {
  return reference_row(problem.subject.pattern, problem.in.q.view(), problem.in.k.view(), b, h,
                       query, problem.options, problem.subject.plan.shape().offset);
}

// The score that a key needs to have weight: above the threshold, and above the middle between the
// last that top_k takes and the next.
double cut_of(const ReferenceRow& row, const Normalizer& normalizer) {
  double lowest = normalizer.alpha > 1 ? row.lse - 1 / (normalizer.alpha - 1) : -INFINITY;
  const size_t top_k = size_t(normalizer.top_k);
  if (top_k > 0 && top_k < row.scores.size()) {
    std::vector<double> sorted = row.scores;
    std::ranges::partial_sort(sorted, sorted.begin() + ptrdiff_t(top_k) + 1, std::greater<>());
    lowest = std::max(lowest, (sorted[top_k - 1] + sorted[top_k]) / 2);
  }
  return lowest;
}

template <class Visit>
void for_each_row(const Subject& subject, const Visit& visit) {
  const std::vector<int64_t> queries = queries_to_check(subject);
  for (int64_t b = 0; b < subject.batch; ++b) {
    for (int64_t h = 0; h < subject.heads; ++h) {
      for (const int64_t query : queries) visit(b, h, query);
    }
  }
}

// The keys that a kernel lists: ascending, then -1. One so near the threshold, or so near the last
// that top_k takes, that rounding decides may be listed or not.
Finding forward_support(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.randomise();
  problem.use_support();
  problem.run(tile);
  Finding finding;
  for_each_row(subject, [&](int64_t b, int64_t h, int64_t query) {
    const ReferenceRow row = row_of(problem, b, h, query);
    const double cut = cut_of(row, subject.normalizer);
    const int32_t* const listed = problem.support_of(b, h, query);
    const auto expect_true = [&](bool is_true, auto&&... what) {
      expect(finding, is_true ? 1 : 0, 1, 0.5, [&] {
        return say("batch entry ", b, ", head ", h, ", query ", query, ": whether ", what...);
      });
    };
    if (listed[0] == kLongSupport) {
      const auto above = std::ranges::count_if(
          row.scores, [&](double score) { return score > cut - kScoreError; });
      // Over tiles on a GPU, neighbours of such rows are without a list, too.
      const bool is_neighbour = kernel.device == Device::Kind::cuda && kernel.rounds_weights;
      return expect_true(is_neighbour || above > kSupportKeys, "more than 64 keys have weight");
    }
    const int32_t* const all = listed + kSupportKeys;
    const int32_t* const end = std::find(listed, all, -1);
    expect_true(std::adjacent_find(listed, end, std::greater_equal<>()) == end &&
                    std::count(end, all, -1) == all - end,
                "the keys ascend, with -1 after them,");
    for (const int32_t* key = listed; key != end; ++key) {
      expect_true(std::ranges::binary_search(row.keys, *key), "key ", *key,
                  ", which is listed, is seen");
    }
    for (size_t j = 0; j < row.keys.size(); ++j) {
      if (std::abs(row.scores[j] - cut) < kScoreError) continue;
      const bool is_listed = std::find(listed, end, row.keys[j]) != end;
      expect_true(is_listed == (row.weights[j] > 0), "key ", row.keys[j], " is listed when it ",
                  row.weights[j] > 0 ? "has weight" : "has none", ", and only then");
    }
  });
  problem.expect_intact(finding);
  return finding;
}

// The forward pass has told which keys have weight.
Finding backward_support(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.randomise();
  problem.use_support();
  for_each_row(subject, [&](int64_t b, int64_t h, int64_t query) {
    const ReferenceRow row = row_of(problem, b, h, query);
    int32_t* const listed = problem.support_of(b, h, query);
    std::fill_n(listed, kSupportKeys, -1);
    int64_t count = 0;
    for (size_t j = 0; j < row.keys.size(); ++j) {
      if (!(row.weights[j] > 0)) continue;
      if (count < kSupportKeys) listed[count] = int32_t(row.keys[j]);
      ++count;
    }
    if (count > kSupportKeys) listed[0] = kLongSupport;
  });
  return compare(problem, tile);
}

template <bool has_extras>
Finding random_numbers(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.randomise();
  if (has_extras) problem.use_softcap_and_sinks();
  return compare(problem, tile);
}

// q = 0, dout = 1: the gradient of a value is the sum over the queries that see it of 1 / their
// keys.
Finding backward_count(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.has_equal_terms = true;
  problem.in.q.fill(0), problem.in.k.fill(0), problem.in.v.fill(1), problem.in.dout.fill(1);
  return compare(problem, tile);
}

constexpr Trial kTrials[] = {
    {"strides, NaN around", Operation::forward, random_numbers<false>},
    {"softcap and sinks", Operation::forward, random_numbers<true>,
     /*has_softcap=*/true},
    {"NaN in one key", Operation::forward, forward_nan_key},
    {"count of keys", Operation::forward, forward_count},
    {"spike at an edge", Operation::forward, forward_spike},
    {"keys that have weight", Operation::forward, forward_support, /*has_softcap=*/false,
     /*is_for_sparse=*/true},
    {"strides, NaN around", Operation::backward, random_numbers<false>},
    {"softcap and sinks", Operation::backward, random_numbers<true>,
     /*has_softcap=*/true},
    {"count of keys", Operation::backward, backward_count},
    {"keys that have weight", Operation::backward, backward_support, /*has_softcap=*/false,
     /*is_for_sparse=*/true},
};

}  // namespace

std::span<const Trial> trials() { return kTrials; }

}  // namespace keyhole::judge
