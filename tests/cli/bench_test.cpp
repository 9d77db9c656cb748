// tests/cli/bench_test.cpp
// A benchmark is worth what its check is worth: it must see a wrong mask. And what the tables walk
// (cases, the catalog at bench sizes) must be there.
#include <gtest/gtest.h>

#include <set>

#include "cli/bench/cases.h"
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
        const CheckResult result = check(c, plan(c.pattern, c.shape()), inputs, effort);
        EXPECT_TRUE(result.is_passed)
            << to_string(operation) << " " << to_string(dtype) << ": " << result.complaint;
        EXPECT_EQ(result.is_sampled, effort.all_rows_up_to == 16);
      }
    }
  }
}

const Normalizer kSparse[] = {entmax(1.5), entmax(1.25), entmax(2), entmax(1.75, 8), softmax(8)};

TEST(BenchCheck, PassesEntmaxAndTopK) {
  for (const Normalizer& normalizer : kSparse) {
    for (const Operation operation : {Operation::forward, Operation::backward}) {
      for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
        Case c = small_case(causal(), operation, dtype);
        c.normalizer = normalizer;
        const Subject subject(c, std::make_shared<Inputs>(c), Effort{});
        EXPECT_TRUE(subject.check_result().is_passed)
            << to_string(normalizer) << " " << to_string(operation) << " " << to_string(dtype)
            << ": " << subject.check_result().complaint;
        EXPECT_NE(subject.kernel().find("entmax"), std::string::npos);
        EXPECT_EQ(subject.support_bytes(), 4 * 70 * kSupportKeys * 4);
      }
    }
  }
}

// A mask that is wrong by one key, in rows that keep few keys.
TEST(BenchCheck, SeesAWrongMaskOfEntmax) {
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    Case c = small_case(causal() & window(5), operation);
    c.normalizer = entmax(1.5);
    AttentionOptions options;
    options.normalizer = c.normalizer;
    Inputs inputs(c);
    EXPECT_TRUE(check(c, plan(c.pattern, c.shape()), inputs, {}, options).is_passed);
    const Plan wrong = plan(causal() & window(6), c.shape());
    EXPECT_FALSE(check(c, wrong, inputs, {}, options).is_passed) << to_string(operation);
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
        const CheckResult result = check(c, plan(wrong, c.shape()), inputs, effort);
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
      parse_cases("# comment\n\nx  3 8:2 64:96 32 bf16 causal & (window(3) | sinks(1))  \n",
                  Operation::forward, "text");
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(cases[0].pattern, parse("causal & (window(3) | sinks(1))"));
  EXPECT_EQ(cases[0].heads, 24);
  EXPECT_EQ(cases[0].kv_heads, 6);
  EXPECT_EQ(cases[0].q_len, 64);
  EXPECT_EQ(cases[0].k_len, 96);
  EXPECT_EQ(cases[0].dtype, DType::bf16);
}

TEST(BenchCases, NamesChooseThem) {
  const Device gpu{Device::Kind::cuda, 0};
  const auto names = [&](const std::string& only) {
    std::vector<std::string> found;
    for (const Case& c : built_in_cases(Operation::forward, gpu, only)) found.push_back(c.name);
    return found;
  };
  EXPECT_EQ(names("gather,dense-4k*f32"),
            (std::vector<std::string>{"dense-4k-d64-f32", "dense-4k-d128-f32", "gather"}));
  for (const std::string& name : names("")) EXPECT_FALSE(name.starts_with("own-")) << name;
  EXPECT_THROW(names("nothing"), Error);
}

TEST(BenchCases, RepeatedPairsReturnAfterTheirPeriod) {
  const Case c = parse_cases("x 1 1 20 32 f32 repeated(6, 4, causal & window(2))",
                             Operation::forward, "text")[0];
  const HeadPattern repeated = c.pattern.for_head(c.shape());
  for (int64_t q = 0; q < 20; ++q) {
    for (int64_t k = 0; k < 20; ++k) {
      EXPECT_EQ(repeated.allows(q, k), k % 4 <= q % 6 && q % 6 - k % 4 <= 2) << q << ", " << k;
    }
  }
}

TEST(BenchCases, ANanThatIsMaskedReachesNobody) {
  Case c = small_case(~sinks(1), Operation::forward, DType::bf16);
  c.has_nan = true;
  Inputs inputs(c);
  EXPECT_TRUE(check(c, plan(c.pattern, c.shape()), inputs, {}).is_passed);
  EXPECT_FALSE(check(c, plan(dense(), c.shape()), inputs, {}).is_passed);
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

// Key lists of a plan, and the same given as index tensors of either width.
TEST(BenchMeasure, IndicesAreFollowedInsteadOfThePlan) {
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    for (const char* indices : {"", "int32", "int64"}) {
      Case c = small_case(parse("random(1, 3, 1)"), operation);
      c.k_len = 4096;  // so scattered that no tile is worth its while
      Effort effort;
      effort.indices = indices;
      effort.options.deterministic = true;
      const Subject subject(c, std::make_shared<Inputs>(c), effort);
      EXPECT_TRUE(subject.check_result().is_passed) << subject.check_result().complaint;
      EXPECT_EQ(subject.gathered_bytes(), 70 * 3 * c.kv_heads * 2 * c.head_dim * 4);
    }
  }
  Effort effort;
  effort.indices = "int32";
  const Case tiles = small_case(causal(), Operation::forward);
  EXPECT_THROW(Subject(tiles, std::make_shared<Inputs>(tiles), effort), Error);
}

TEST(BenchMeasure, DenseTwinsAreCausalForCausalPatterns) {
  EXPECT_EQ(dense_twin(small_case(streaming(2, 5), Operation::forward)).pattern_text, "causal");
  EXPECT_EQ(dense_twin(small_case(window(5), Operation::forward)).pattern_text, "dense");
}

TEST(BenchSession, AMissedBarIsTheExitCode) {
  Options options;
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
  EXPECT_EQ(doubling({128, 1000}), (std::vector<int64_t>{128, 256, 512, 1000}));
}

}  // namespace
}  // namespace keyhole::bench
