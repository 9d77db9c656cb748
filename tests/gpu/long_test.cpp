// tests/gpu/long_test.cpp
// 131,072 keys, and not one of them wrong. No tolerance of values would see it; two probes do:
//   count  q = 0, so that exp(lse) is the number of keys that a row sees: every row of every
//   pattern spike  a query points at a key at an edge of its mask: lse tells whether it was seen
// tests/kernels/probes_test.cpp has the same for the cpu, and says more of why they work.
#include <cmath>
#include <iostream>

#include "gpu/gpu_problem.h"
#include "pattern/node.h"
#include "support/inputs.h"

namespace keyhole::test {
namespace {

using LongSequences = GpuTest;

constexpr int64_t kKeys = 131072;
constexpr const char* kTexts[] = {"causal", "causal & (window(1023) | sinks(4))", "strided(512)",
                                  "random(1, 64, 7)", "bigbird(64, 3, 3, 2, 1)"};

// How many keys a query sees, pair by pair only where the pattern does not say more at once.
int64_t count_keys(const Node& node, Position q) {
  Strip seen;
  node.strip({q, q + 1}, {0, kKeys}, 1, seen);
  int64_t count = 0;
  for (const Segment& segment : seen) {
    if (segment.cover == Cover::all) count += segment.end - segment.begin;
    if (segment.cover != Cover::some) continue;
    for (Position k = segment.begin; k < segment.end; ++k) count += node.allows(q, k);
  }
  return count;
}

std::vector<int64_t> count_all(const Pattern& pattern) {
  const HeadPattern head = pattern.for_head(Shape{.q_len = kKeys, .k_len = kKeys});
  std::vector<int64_t> counts;
  for (int64_t query = 0; query < kKeys; ++query) {
    counts.push_back(count_keys(*head.node(), query));
  }
  // The short cut is right: some rows by the definition alone.
  for (const int64_t query : {int64_t{0}, int64_t{1}, int64_t{511}, int64_t{77777}, kKeys - 1}) {
    int64_t count = 0;
    for (int64_t key = 0; key < kKeys; ++key) count += head.allows(query, key);
    EXPECT_EQ(counts[size_t(query)], count) << pattern << ", query " << query;
  }
  return counts;
}

TEST_F(LongSequences, EveryRowSeesAsManyKeysAsItMay) {
  const GpuProblem problem({.heads = 1, .q_len = kKeys, .k_len = kKeys, .has_sink = false});
  problem.q.fill(0);
  for (const char* text : kTexts) {
    const Pattern pattern = parse(text);
    const Plan made = plan(pattern, kKeys, kKeys);
    const std::vector<int64_t> want = count_all(pattern);
    for (const std::string& backend : gpu_backends(Operation::forward, DType::bf16)) {
      problem.spoil(Operation::forward);
      problem.forward(made, by_backend(backend));
      const std::vector<float> lse = problem.lse.read();
      int64_t wrong = 0;
      for (int64_t query = 0; query < kKeys; ++query) {
        const double counted = std::exp(double(lse[size_t(query)]));
        // The last place of lse is an eighth of a key at the longest rows.
        if (std::abs(counted - double(want[size_t(query)])) < 0.5) continue;
        if (++wrong <= 5) {
          ADD_FAILURE() << backend << ", " << text << ": query " << query << " sees " << counted
                        << " keys, not " << want[size_t(query)];
        }
      }
      EXPECT_EQ(wrong, 0) << backend << ", " << text;
    }
  }
  std::cout << std::size(kTexts) << " patterns, " << kKeys << " rows each\n";
}

// A key on either side of the next change of the mask behind a random place.
int64_t key_at_an_edge(const uint8_t* may_see, Random& random) {
  int64_t key = random.between(1, kKeys - 1);
  while (key < kKeys - 1 && may_see[key] == may_see[key - 1]) ++key;
  return key - random.below(2);
}

std::vector<float> signs(int64_t count, Random& random) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = random.chance(50) ? 1.f : -1.f;
  return numbers;
}

void spike(const Pattern& pattern, const Shape& shape, const GpuProblem& problem, Random& random) {
  // Keys are random signs in 64 dimensions, a query is twice those of its target: the target scores
  // 16, all 131,072 others together about as much as one key of score 14. Exact in bf16.
  constexpr int64_t kDim = 64;
  const AllowedPairs allowed(pattern, shape);
  const Plan made = plan(pattern, shape);
  const std::vector<float> keys = signs(kKeys * kDim, random);
  std::vector<float> queries;
  std::vector<int64_t> targets;
  for (int64_t query = 0; query < shape.q_len; ++query) {
    targets.push_back(key_at_an_edge(allowed.row(0, 0, query), random));
    for (int64_t x = 0; x < kDim; ++x) {
      queries.push_back(2 * keys[size_t(targets.back() * kDim + x)]);
    }
  }
  problem.q.write(queries);
  problem.k.write(keys);
  for (const std::string& backend : gpu_backends(Operation::forward, DType::bf16)) {
    problem.spoil(Operation::forward);
    problem.forward(made, by_backend(backend));
    const std::vector<float> lse = problem.lse.read();
    for (int64_t query = 0; query < shape.q_len; ++query) {
      const int64_t target = targets[size_t(query)];
      const bool is_seen = lse[size_t(query)] >= 15.99f;
      EXPECT_EQ(is_seen, allowed(0, 0, query, target))
          << backend << ", " << pattern << ", offset " << *shape.offset << ", query " << query
          << ", key " << target << ", lse " << lse[size_t(query)];
      EXPECT_FALSE(lse[size_t(query)] > 15.5f && !is_seen) << "the probe itself is not sharp";
    }
  }
}

TEST_F(LongSequences, KeysAtTheEdgesOfTheMaskAreSeenOrNot) {
  constexpr int64_t kQueries = 150;  // more than a tile of any kernel
  const GpuProblem problem({.heads = 1, .q_len = kQueries, .k_len = kKeys, .has_sink = false});
  Random random(7);
  for (const char* text : kTexts) {
    for (const int64_t offset : {int64_t{0}, kKeys / 2 - 13, kKeys - kQueries}) {
      spike(parse(text), {.q_len = kQueries, .k_len = kKeys, .offset = offset}, problem, random);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace keyhole::test
