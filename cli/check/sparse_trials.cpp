// cli/check/sparse_trials.cpp
#include "cli/check/sparse_trials.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "reference/sparse_weights.h"

namespace keyhole::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Of a score, by rounding, in any dtype: inputs are what they are, products are added in fp32.
constexpr double kScoreError = 1e-4;

// The attended keys of one query in ascending order, with their scores and weights.
struct WeighedRow {
  std::vector<int32_t> keys;
  std::vector<double> scores;
  SparseWeights<double> weighed;

  WeighedRow(const Problem& problem, int64_t b, int64_t h, int64_t query) {
    const Subject& s = problem.subject;
    const int64_t kv_head = h / (s.heads / s.kv_heads), d = s.head_dim;
    for (int64_t key = 0; key < s.k_len; ++key) {
      if (!problem.attends(b, h, query, key)) continue;
      double sum = 0;
      for (int64_t x = 0; x < d; ++x) {
        sum += problem.q.get(problem.q_row(b, h, query) * d + x) *
               problem.k.get(problem.k_row(b, kv_head, key) * d + x);
      }
      keys.push_back(int32_t(key));
      scores.push_back(*problem.options.scale * sum);
    }
    weighed = sparse_weights(s.normalizer, scores, -kInfinity);
  }

  // The score that a key needs to have weight: above the threshold, and above the middle between
  // the last that top_k takes and the next.
  double cut(const Normalizer& normalizer) const {
    double lowest = normalizer.alpha > 1 ? weighed.lambda - 1 / (normalizer.alpha - 1) : -kInfinity;
    const size_t top_k = size_t(normalizer.top_k);
    if (top_k > 0 && top_k < scores.size()) {
      std::vector<double> sorted = scores;
      std::partial_sort(sorted.begin(), sorted.begin() + ptrdiff_t(top_k) + 1, sorted.end(),
                        std::greater<>());
      lowest = std::max(lowest, (sorted[top_k - 1] + sorted[top_k]) / 2);
    }
    return lowest;
  }
};

template <class Visit>
void for_each_row(const Subject& s, const Visit& visit) {
  const int64_t step = s.q_len > kLongestFullyChecked ? s.q_len / 32 : 1;
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t query = 0; query < s.q_len; query += step) visit(b, h, query);
    }
  }
}

// Ascending keys, then -1; nothing where the row says that it has more.
void expect_form(Finding& finding, const int32_t* row, const std::string& where) {
  const int32_t* const end = std::find(row, row + kSupportKeys, -1);
  const bool is_ascending =
      std::adjacent_find(row, end, std::greater_equal<>()) == end && (row == end || *row >= 0);
  const bool is_filled =
      std::all_of(end, row + kSupportKeys, [](int32_t key) { return key == -1; });
  expect(finding, is_ascending && is_filled ? 1 : 0, 1, 0.5,
         [&] { return say(where, ": whether the keys ascend, with -1 after them,"); });
}

}  // namespace

int64_t most_kept(const Normalizer& normalizer, int64_t keys) {
  return normalizer.top_k > 0 ? std::min(keys, normalizer.top_k) : keys;
}

// n weights of 1 / n: (1 - (alpha - 1) lambda)^(1 / (alpha - 1)) = 1 / n.
double statistic_of_equal(const Normalizer& normalizer, double keys) {
  const double bend = normalizer.alpha - 1;
  return bend == 0 ? std::log(keys) : (1 - std::pow(keys, -bend)) / bend;
}

double number_of_equal(const Normalizer& normalizer, double statistic) {
  const double bend = normalizer.alpha - 1;
  return bend == 0 ? std::exp(statistic) : std::pow(1 - bend * statistic, -1 / bend);
}

double allowed_of_equal(const Normalizer& normalizer, double keys) {
  constexpr double kLess = 0.4;
  return normalizer.alpha == 1 ? kLess : kLess + 1e-6 * std::pow(keys, normalizer.alpha);
}

double SpikeWeights::beside(int64_t others) {
  if (normalizer_.is_plain_softmax()) {
    const double weight = std::exp(score_);
    return weight / (weight + double(others));
  }
  const auto [found, is_new] = known_.try_emplace(others, 0);
  if (is_new) {
    std::vector<double> scores(size_t(others) + 1, 0);
    scores[0] = score_;
    found->second = sparse_weights(normalizer_, scores, -kInfinity).weight[0];
  }
  return found->second;
}

Finding forward_support(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.randomise();
  problem.use_support();
  problem.run_forward(tile);
  Finding finding;
  for_each_row(subject, [&](int64_t b, int64_t h, int64_t query) {
    const WeighedRow row(problem, b, h, query);
    const int32_t* const listed = problem.support_of(b, h, query);
    const std::string where = say("batch entry ", b, ", head ", h, ", query ", query);
    const double cut = row.cut(subject.normalizer);
    const auto count_above = [&](double least) {
      return std::ranges::count_if(row.scores, [&](double score) { return score > least; });
    };
    if (listed[0] == kLongSupport) {
      return expect(finding, count_above(cut - kScoreError) > kSupportKeys ? 1 : 0, 1, 0.5,
                    [&] { return say(where, ": whether more than 64 keys have weight"); });
    }
    expect_form(finding, listed, where);
    for (int64_t i = 0; i < kSupportKeys && listed[i] != -1; ++i) {
      expect(finding, std::ranges::binary_search(row.keys, listed[i]) ? 1 : 0, 1, 0.5,
             [&] { return say(where, ": whether key ", listed[i], ", which is listed, is seen"); });
    }
    for (size_t j = 0; j < row.keys.size(); ++j) {
      if (std::abs(row.scores[j] - cut) < kScoreError) continue;
      const bool is_listed =
          std::find(listed, listed + kSupportKeys, row.keys[j]) != listed + kSupportKeys;
      expect(finding, is_listed ? 1 : 0, row.weighed.weight[j] > 0 ? 1 : 0, 0.5, [&] {
        return say(where, ": whether key ", row.keys[j], " is listed with those that have weight");
      });
    }
  });
  expect_intact(finding, problem);
  return finding;
}

void write_support(Problem& problem) {
  problem.use_support();
  for_each_row(problem.subject, [&](int64_t b, int64_t h, int64_t query) {
    const WeighedRow row(problem, b, h, query);
    int32_t* const listed = problem.support_of(b, h, query);
    std::fill_n(listed, kSupportKeys, -1);
    int64_t count = 0;
    for (size_t j = 0; j < row.keys.size(); ++j) {
      if (!(row.weighed.weight[j] > 0)) continue;
      if (count < kSupportKeys) listed[count] = row.keys[j];
      ++count;
    }
    if (count > kSupportKeys) listed[0] = kLongSupport;
  });
}

}  // namespace keyhole::cli
