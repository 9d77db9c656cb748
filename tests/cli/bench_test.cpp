// tests/cli/bench_test.cpp
// A benchmark is worth what its check is worth: it must see a wrong mask. And what the tables walk
// (cases, the catalog at bench sizes) must be there.
#include <gtest/gtest.h>

#include <set>

#include "cli/bench/cases.h"
#include "cli/bench/check.h"
#include "cli/bench/measure.h"
#include "cli/bench/patterns.h"
#include "cli/bench/session.h"  // doubling
#include "cli/bench/timing.h"

namespace keyhole::bench {
namespace {

Case small_case(const Pattern& pattern, Operation operation, DType dtype = DType::f32) {
  Case c{.name = "small", .pattern = pattern, .pattern_text = pattern.text()};
  c.q_len = c.k_len = 70;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 12;
  c.dtype = dtype;
  c.operation = operation;
  return c;
}

constexpr CheckEffort kSampled = {
    .all_rows_up_to = 16, .sampled_keys = 1, .min_rows = 20, .max_rows = 20};

TEST(BenchCheck, PassesWhatIsRight) {
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
      for (const CheckEffort& effort : {CheckEffort{}, kSampled}) {
        const Case c = small_case(causal() & window(5), operation, dtype);
        Inputs inputs(c);
        const CheckResult result = check(c, plan(c.pattern, c.shape()), inputs, effort, 0);
        EXPECT_TRUE(result.is_passed)
            << to_string(operation) << " " << to_string(dtype) << ": " << result.complaint;
        EXPECT_EQ(result.is_sampled, effort.all_rows_up_to == 16);
      }
    }
  }
}

TEST(BenchCheck, SeesAWrongMask) {
  const Pattern right = causal() & window(5);
  for (const Pattern& wrong :
       {causal() & window(4), causal() & window(6), right | sinks(1), ~right}) {
    for (const Operation operation : {Operation::forward, Operation::backward}) {
      for (const CheckEffort& effort : {CheckEffort{}, kSampled}) {
        const Case c = small_case(right, operation);
        Inputs inputs(c);
        const CheckResult result = check(c, plan(wrong, c.shape()), inputs, effort, 0);
        EXPECT_FALSE(result.is_passed) << to_string(operation) << " followed " << wrong;
        EXPECT_NE(result.complaint, "") << wrong;
      }
    }
  }
}

TEST(BenchCases, BuiltInOnesAreNamedOnce) {
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    std::set<std::string> names;
    for (const Case& c : built_in_cases(operation)) {
      EXPECT_TRUE(names.insert(c.name).second) << c.name;
      EXPECT_EQ(c.operation, operation);
    }
    EXPECT_TRUE(names.count("dense-2k"));
  }
}

TEST(BenchCases, APatternMayHoldBlanks) {
  const auto cases =
      parse_cases("# comment\n\nx  causal & (window(3) | sinks(1))  64 8 2 32 bf16\n",
                  Operation::forward, "text");
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(cases[0].pattern, parse("causal & (window(3) | sinks(1))"));
  EXPECT_EQ(cases[0].kv_heads, 2);
  EXPECT_EQ(cases[0].dtype, DType::bf16);
}

TEST(BenchPatterns, TheWholeCatalogHasABenchSize) {
  for (const CatalogEntry& entry : catalog()) {
    for (const int64_t length : {16, 100, 1024}) {
      const auto sized = sized_pattern(entry, length, /*heads=*/2);
      ASSERT_TRUE(sized.has_value()) << entry.name;
      Case c = small_case(sized->pattern, Operation::forward);
      c.q_len = c.k_len = length;
      c.heads = c.kv_heads = 2;
      EXPECT_GT(plan(c.pattern, c.shape()).explain().pairs, 0) << sized->text;
    }
  }
}

TEST(BenchPatterns, ADraftTreeSeesItsContextAndItsPath) {
  for (const int64_t context : {0, 1, 50}) {
    const Pattern tree = draft_tree(context);
    const Shape shape{
        .batch = 1, .heads = 1, .q_len = kDraftNodes, .k_len = context + kDraftNodes, .offset = {}};
    const HeadPattern head = tree.for_head(shape);
    for (int64_t node = 0; node < kDraftNodes; ++node) {
      int64_t seen = 0;
      for (int64_t key = 0; key < shape.k_len; ++key) seen += head.allows(node, key);
      EXPECT_GE(seen, context + 1);
      EXPECT_LE(seen, context + 4) << "four levels";
    }
  }
}

TEST(BenchMeasure, DenseTwinsAreCausalForCausalPatterns) {
  EXPECT_EQ(dense_twin(small_case(streaming(2, 5), Operation::forward)).pattern_text, "causal");
  EXPECT_EQ(dense_twin(small_case(window(5), Operation::forward)).pattern_text, "dense");
}

TEST(BenchSession, AMissedBarIsTheExitCode) {
  SessionOptions options;
  options.json_path = "-";  // nothing is printed but the records, and there are none
  Session session(options);
  EXPECT_EQ(session.finish(), cli::kDone);
  session.miss_bar();
  EXPECT_EQ(session.finish(), cli::kCheckFailed);
}

TEST(BenchTiming, MedianAndSpread) {
  const Timing timing = summarize({5, 1, 2, 4, 3});
  EXPECT_EQ(timing.median_ms, 3);
  EXPECT_EQ(timing.min_ms, 1);
  EXPECT_DOUBLE_EQ(timing.p10_ms, 1.4);
  EXPECT_DOUBLE_EQ(timing.p90_ms, 4.6);
  EXPECT_EQ(timing.runs, 5);
  EXPECT_EQ(doubling(128, 1000), (std::vector<int64_t>{128, 256, 512, 1000}));
}

}  // namespace
}  // namespace keyhole::bench
