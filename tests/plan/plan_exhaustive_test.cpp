// tests/plan/plan_exhaustive_test.cpp
// Plans against the patterns they were made from, every pair: each sample of the catalog for all
// small lengths and several offsets, and thousands of random patterns, in every tile shape of the
// list. Nearly every planner bug shows within two tiles, so small lengths are searched completely.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <mutex>

#include "base/parallel.h"
#include "keyhole/error.h"
#include "pattern/catalog.h"
#include "pattern/smallest_shape.h"
#include "support/check_plan.h"
#include "support/plan_compare.h"
#include "support/scale.h"

namespace keyhole::test {
namespace {

constexpr TileShape kTiles[] = {{1, 1}, {2, 3}, {4, 4}, {8, 8}};

struct Counts {
  std::atomic<int64_t> combinations = 0, pairs = 0;
  void print(const char* what) const {
    std::cout << what << ": " << combinations << " (pattern, q_len, k_len, tile) combinations, "
              << pairs << " pairs compared\n";
  }
};

// The first few differences; thousands more would say nothing new.
class Differences {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (++count_ <= 5) texts_ += text + "\n";
  }
  void expect_none() const { EXPECT_EQ(count_, 0) << texts_; }

 private:
  std::mutex mutex_;
  int64_t count_ = 0;
  std::string texts_;
};

bool is_of_arrays(const std::string& text) {
  constexpr const char* kNames[] = {"at(",           "documents(", "tree(",  "grid(",
                                    "neighborhood(", "volume(",    "mask(",  "tiles(",
                                    "bitmaps(",      "csr(",       "packed("};
  return std::ranges::any_of(kNames,
                             [&](const char* name) { return text.find(name) < text.size(); });
}

void compare_all_lengths(const std::string& text, Counts& counts, Differences& differences) {
  const Pattern pattern = parse(text);
  const int64_t longest = scaled(100) >= 100 ? 11 : 6;
  for (int64_t q_len = 0; q_len <= longest; ++q_len) {
    for (int64_t k_len = 0; k_len <= longest; ++k_len) {
      Shape shape = smallest_shape(pattern, q_len, k_len);
      // The default offset, and now and then one of the others.
      if ((q_len + k_len) % 5 == 0) shape.offset = (q_len * 7 + k_len * 3) % 17 - 8;
      try {
        const AllowedPairs allowed(pattern, shape);
        const Plan made = plan(pattern, shape);
        for (const TileShape tile : kTiles) {
          const std::string difference = compare_plan_with_pairs(made, allowed, tile);
          if (!difference.empty()) {
            differences.add(text + " " + std::to_string(q_len) + " x " + std::to_string(k_len) +
                            ": " + difference);
          }
          ++counts.combinations;
          counts.pairs += shape.batch * shape.heads * q_len * k_len;
        }
      } catch (const Error& error) {
        // Arrays fix the lengths they are for; everything else takes any length.
        if (error.kind() != ErrorKind::usage || !is_of_arrays(text)) {
          differences.add(text + ": " + error.what());
        }
      }
    }
  }
}

TEST(PlanExhaustive, EverySampleForAllSmallLengths) {
  const std::vector<std::string> texts = sample_texts();
  Counts counts;
  Differences differences;
  parallel_for(int64_t(texts.size()), 0,
               [&](int64_t i, int) { compare_all_lengths(texts[size_t(i)], counts, differences); });
  differences.expect_none();
  counts.print("samples");
}

TEST(PlanExhaustive, RandomPatterns) {
  const int64_t cases = scaled(22'000);
  Counts counts;
  Differences differences;
  parallel_for(cases, 0, [&](int64_t seed, int) {
    const Case c = draw_plan_case(uint64_t(seed));
    int64_t combinations = 0, pairs = 0;
    const Failure failure = check_plan(c, &combinations, &pairs);
    counts.combinations += combinations;
    counts.pairs += pairs;
    if (failure)
      differences.add(failure.detail + "\n  keyhole_fuzz --plan-case '" + to_text(c) + "'");
  });
  differences.expect_none();
  counts.print("random patterns");
}

// The comparison itself must notice: another pattern's plan, a shifted one, one pair too few.
TEST(PlanExhaustive, TheComparisonSeesOneWrongPair) {
  const Shape shape{1, 1, 20, 23, {}};
  const Pattern right = parse("causal & window(4)");
  for (const char* wrong :
       {"causal & window(5)", "causal & window(3)", "causal & window(4, 0) & ~sinks(1)", "causal",
        "~dense", "causal & window(4) | global_at(22)"}) {
    for (const TileShape tile : kTiles) {
      EXPECT_NE(compare_plan_with_pattern(plan(parse(wrong), shape), right, tile), "") << wrong;
      EXPECT_EQ(compare_plan_with_pattern(plan(right, shape), right, tile), "");
    }
  }
}

}  // namespace
}  // namespace keyhole::test
