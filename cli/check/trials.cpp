// cli/check/trials.cpp
// The table of trials. Tolerance cannot see one wrong key in thousands, so that two probes look at
// the mask itself: count (q = 0: exp(lse) is the number of keys) and spike (one key at an edge of
// the mask carries nearly all the weight). Entmax and top_k go through the same trials, with
// weights of their own, and through two of theirs (sparse_trials.h).
#include "cli/check/trials.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/dtype.h"
#include "cli/check/problem.h"
#include "cli/check/sparse_trials.h"

namespace keyhole::cli {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// All queries of a short sequence, a sample with both ends of a long one.
std::vector<int64_t> queries_to_check(const Subject& subject) {
  std::vector<int64_t> queries(size_t(subject.q_len));
  std::iota(queries.begin(), queries.end(), 0);
  if (subject.q_len <= kLongestFullyChecked) return queries;
  Random random(subject.seed + 2);
  std::vector<int64_t> sample = {0, 1, subject.q_len - 2, subject.q_len - 1};
  for (int i = 0; i < 28; ++i) sample.push_back(random.below(subject.q_len));
  std::sort(sample.begin(), sample.end());
  sample.erase(std::unique(sample.begin(), sample.end()), sample.end());
  return sample;
}

std::vector<double> rows_of(const HostileTensor& tensor, const Problem& problem,
                            const std::vector<int64_t>& queries) {
  const Subject& subject = problem.subject;
  const int64_t dim =
      tensor.size() / std::max<int64_t>(1, subject.batch * subject.heads * subject.q_len);
  std::vector<double> rows;
  for (int64_t head = 0; head < subject.batch * subject.heads; ++head) {
    for (const int64_t query : queries) {
      for (int64_t x = 0; x < dim; ++x)
        rows.push_back(tensor.get((head * subject.q_len + query) * dim + x));
    }
  }
  return rows;
}

Finding compare_forward(Problem& problem, const KernelEntry& kernel, TileShape tile) {
  const Subject& subject = problem.subject;
  const std::vector<int64_t> queries = queries_to_check(subject);
  const std::optional<int64_t> offset = subject.plan.shape().offset;
  // The kernel first: the reference must not leave the right answer in memory.
  problem.run_forward(tile);
  const ReferenceOutput want =
      reference_forward_rows(subject.pattern, problem.q.view(), problem.k.view(), problem.v.view(),
                             queries, problem.options, offset);
  const auto disturbed = [&](int sign) {
    const Disturbed other(problem, sign * working_precision(kernel, Operation::forward, subject));
    return reference_forward_rows(subject.pattern, other.q_view, other.k_view, other.v_view,
                                  queries, problem.options, offset);
  };
  ReferenceOutput rough = disturbed(1);
  if (kernel.weights == Weights::sparse) {
    const ReferenceOutput mirrored = disturbed(-1);
    rough.out = farther(want.out, std::move(rough.out), mirrored.out);
    rough.lse = farther(want.lse, std::move(rough.lse), mirrored.lse);
  }
  Finding finding = compare({{"out", rows_of(problem.out, problem, queries), want.out, rough.out,
                              rounding_unit(problem.dtype)},
                             {"lse", rows_of(problem.lse, problem, queries), want.lse, rough.lse,
                              rounding_unit(problem.lse.view().dtype)}});
  expect_intact(finding, problem);
  return finding;
}

// One key of each head is NaN: queries that attend to it must say so, the others must not notice.
Finding forward_nan_key(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.randomise();
  for (int64_t head = 0; head < subject.batch * subject.kv_heads && subject.k_len > 0; ++head) {
    const int64_t row = head * subject.k_len + problem.random.below(subject.k_len);
    for (int64_t x = 0; x < subject.head_dim; ++x) problem.k.set(row * subject.head_dim + x, kNan);
    for (int64_t x = 0; x < subject.v_head_dim; ++x)
      problem.v.set(row * subject.v_head_dim + x, kNan);
  }
  return compare_forward(problem, kernel, tile);
}

Finding forward_count(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.randomise();
  problem.q.fill(0);
  problem.v.fill(1);
  // A masked NaN key would be seen through 0 x NaN; here K may stay NaN where nobody attends.
  problem.run_forward(tile);
  Finding finding;
  for (int64_t b = 0; b < subject.batch; ++b) {
    for (int64_t h = 0; h < subject.heads; ++h) {
      for (const int64_t query : queries_to_check(subject)) {
        int64_t keys = 0;
        for (int64_t key = 0; key < subject.k_len; ++key) keys += problem.attends(b, h, query, key);
        keys = most_kept(subject.normalizer, keys);
        const int64_t row = problem.q_row(b, h, query);
        const auto where = [&] {
          return say("batch entry ", b, ", head ", h, ", query ", query, ": the number of keys");
        };
        expect(finding, number_of_equal(subject.normalizer, problem.lse.get(row)), double(keys),
               allowed_of_equal(subject.normalizer, double(keys)), where);
        const double out =
            subject.v_head_dim > 0 ? problem.out.get(row * subject.v_head_dim) : double(keys > 0);
        expect(finding, out, keys > 0 ? 1 : 0, 0.4,
               [&] { return say(where(), " is right, but out"); });
      }
    }
  }
  expect_intact(finding, problem);
  return finding;
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

Finding forward_spike(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Finding finding;
  if (subject.q_len == 0 || subject.k_len == 0 || subject.head_dim == 0) return finding;
  Problem problem(subject, kernel);
  problem.q.fill(1), problem.k.fill(0), problem.v.fill(0);
  const int64_t group = subject.heads / subject.kv_heads;
  // The spike has e^3 times the weight of all other keys together: 95 %.
  const double logit = std::log(double(subject.k_len)) + 3;
  std::vector<int64_t> spikes;
  for (int64_t head = 0; head < subject.batch * subject.kv_heads; ++head) {
    const int64_t b = head / subject.kv_heads, h = head % subject.kv_heads;
    const int64_t key = edge_key(problem, b, h * group);
    spikes.push_back(key);
    problem.k.set(problem.k_row(b, h, key) * subject.head_dim, logit / *problem.options.scale);
    for (int64_t x = 0; x < subject.v_head_dim; ++x)
      problem.v.set(problem.k_row(b, h, key) * subject.v_head_dim + x, 1);
  }
  problem.run_forward(tile);
  for (int64_t b = 0; b < subject.batch; ++b) {
    for (int64_t h = 0; h < subject.heads; ++h) {
      const int64_t key = spikes[size_t(b * subject.kv_heads + h / group)];
      const double first = problem.k.get(problem.k_row(b, h / group, key) * subject.head_dim);
      // Of the spike as it was rounded.
      SpikeWeights weights(subject.normalizer, first * *problem.options.scale);
      for (const int64_t query : queries_to_check(subject)) {
        int64_t others = 0;
        for (int64_t j = 0; j < subject.k_len; ++j)
          others += j != key && problem.attends(b, h, query, j);
        const bool is_seen = problem.attends(b, h, query, key);
        const double want = is_seen ? weights.beside(others) : 0;
        const double got = problem.out.get(problem.q_row(b, h, query) * subject.v_head_dim);
        expect(finding, got, want, 4 * rounding_unit(problem.dtype) + 1e-5, [&] {
          return say("batch entry ", b, ", head ", h, ", query ", query, ": the weight of key ",
                     key);
        });
      }
    }
  }
  expect_intact(finding, problem);
  return finding;
}

Finding compare_backward(Problem& problem, const KernelEntry& kernel, TileShape tile) {
  const Subject& subject = problem.subject;
  const std::optional<int64_t> offset = subject.plan.shape().offset;
  const ReferenceOutput exact =
      reference_forward(subject.pattern, problem.q.view(), problem.k.view(), problem.v.view(),
                        problem.options, offset);
  for (size_t i = 0; i < exact.out.size(); ++i) problem.out.set(int64_t(i), exact.out[i]);
  for (size_t i = 0; i < exact.lse.size(); ++i) problem.lse.set(int64_t(i), exact.lse[i]);
  problem.run_backward(tile);
  const ReferenceGradients want =
      reference_backward(subject.pattern, problem.dout.view(), problem.q.view(), problem.k.view(),
                         problem.v.view(), problem.options, offset);
  const auto disturbed = [&](int sign) {
    const Disturbed other(problem, sign * working_precision(kernel, Operation::backward, subject));
    return reference_backward(subject.pattern, other.dout_view, other.q_view, other.k_view,
                              other.v_view, problem.options, offset);
  };
  ReferenceGradients rough = disturbed(1);
  if (kernel.weights == Weights::sparse) {
    const ReferenceGradients mirrored = disturbed(-1);
    rough.dq = farther(want.dq, std::move(rough.dq), mirrored.dq);
    rough.dk = farther(want.dk, std::move(rough.dk), mirrored.dk);
    rough.dv = farther(want.dv, std::move(rough.dv), mirrored.dv);
    rough.dsink = farther(want.dsink, std::move(rough.dsink), mirrored.dsink);
  }
  const double rounding = rounding_unit(problem.dtype);
  std::vector<Comparison> results = {{"dq", problem.dq.values(), want.dq, rough.dq, rounding},
                                     {"dk", problem.dk.values(), want.dk, rough.dk, rounding},
                                     {"dv", problem.dv.values(), want.dv, rough.dv, rounding}};
  if (problem.options.sink.is_given()) {
    results.push_back(
        {"dsink", problem.dsink.values(), want.dsink, rough.dsink, rounding_unit(DType::f32)});
  }
  Finding finding = compare(results);
  expect_intact(finding, problem);
  return finding;
}

// The forward pass has told which keys have weight.
Finding backward_support(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.randomise();
  write_support(problem);
  return compare_backward(problem, kernel, tile);
}

template <auto compare_pass, bool has_extras>
Finding random_numbers(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.randomise();
  if (has_extras) problem.use_softcap_and_sinks();
  return compare_pass(problem, kernel, tile);
}

// q = 0, dout = 1: the gradient of a value is the sum over the queries that see it of 1 / their
// keys.
Finding backward_count(const KernelEntry& kernel, TileShape tile, const Subject& subject) {
  Problem problem(subject, kernel);
  problem.q.fill(0), problem.k.fill(0), problem.v.fill(1), problem.dout.fill(1);
  std::vector<double> want(size_t(subject.batch * subject.kv_heads * subject.k_len));
  const int64_t group = subject.heads / subject.kv_heads;
  for (int64_t b = 0; b < subject.batch; ++b) {
    for (int64_t h = 0; h < subject.heads; ++h) {
      for (int64_t query = 0; query < subject.q_len; ++query) {
        std::vector<int64_t> keys;
        for (int64_t key = 0; key < subject.k_len; ++key) {
          if (problem.attends(b, h, query, key)) keys.push_back(key);
        }
        // Among equal scores the first keys win.
        keys.resize(size_t(most_kept(subject.normalizer, int64_t(keys.size()))));
        const int64_t row = problem.q_row(b, h, query);
        problem.lse.set(row, statistic_of_equal(subject.normalizer, double(keys.size())));
        for (int64_t x = 0; x < subject.v_head_dim; ++x)
          problem.out.set(row * subject.v_head_dim + x, keys.empty() ? 0 : 1);
        for (const int64_t key : keys)
          want[size_t(problem.k_row(b, h / group, key))] += 1 / double(keys.size());
      }
    }
  }
  problem.run_backward(tile);
  Finding finding;
  for (size_t row = 0; row < want.size() && subject.v_head_dim > 0; ++row) {
    const double of_lambda = 1e-6 * std::pow(double(subject.k_len), subject.normalizer.alpha - 1);
    const double allowed =
        (2 * rounding_unit(problem.dtype) + 1e-5 + of_lambda) * want[row] + 1e-12;
    expect(finding, problem.dv.get(int64_t(row) * subject.v_head_dim), want[row], allowed,
           [&] { return say("dv of key row ", row); });
  }
  expect_intact(finding, problem);
  return finding;
}

constexpr Trial kTrials[] = {
    {"strides, NaN around", Operation::forward, random_numbers<compare_forward, false>},
    {"softcap and sinks", Operation::forward, random_numbers<compare_forward, true>,
     /*has_softcap=*/true},
    {"NaN in one key", Operation::forward, forward_nan_key},
    {"count of keys", Operation::forward, forward_count},
    {"spike at an edge", Operation::forward, forward_spike},
    {"keys that have weight", Operation::forward, forward_support, /*has_softcap=*/false,
     /*is_for_sparse=*/true},
    {"strides, NaN around", Operation::backward, random_numbers<compare_backward, false>},
    {"softcap and sinks", Operation::backward, random_numbers<compare_backward, true>,
     /*has_softcap=*/true},
    {"count of keys", Operation::backward, backward_count},
    {"keys that have weight", Operation::backward, backward_support, /*has_softcap=*/false,
     /*is_for_sparse=*/true},
};

}  // namespace

std::span<const Trial> trials() { return kTrials; }

}  // namespace keyhole::cli
