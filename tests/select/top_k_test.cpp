// tests/select/top_k_test.cpp
// The set and the order of top_k, exactly those of a stable sort of the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "support/scale.h"
#include "support/select_checks.h"

namespace keyhole::test {
namespace {

TEST(TopK, OfEveryKindOfScores) {
  for (int kind = 0; kind < kNumScoreKinds; ++kind) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
      for (const int64_t k : {1, 7, 100, 600}) {
        const SelectCase c{.groups = 2,
                           .q_len = 3,
                           .entries = 500,
                           .k = k,
                           .dtype = dtype,
                           .layout = Layout::padded,
                           .kind = ScoreKind(kind),
                           .extra_columns = k == 7 ? 5 : 0,
                           .seed = uint64_t(kind)};
        EXPECT_EQ(check_top_k(c), "") << to_text(c);
      }
    }
  }
}

// Long rows are bounded by a sample; wherever that fails, the result must not.
TEST(TopK, OfLongRows) {
  Sample sample;
  for (int kind = 0; kind < kNumScoreKinds; ++kind) {
    for (const int64_t k : {1, 300, 2048, 8191}) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        if (!sample.takes_next()) continue;
        const SelectCase c{.q_len = 2,
                           .entries = 32768 + 5,
                           .k = k,
                           .dtype = dtype,
                           .kind = ScoreKind(kind),
                           .seed = uint64_t(kind)};
        EXPECT_EQ(check_top_k(c), "") << to_text(c);
      }
    }
  }
}

TEST(TopK, OfTheLongestRow) {
  const SelectCase c{.q_len = 1, .entries = 131072, .k = 2048};
  EXPECT_EQ(check_top_k(c), "");
}

TEST(TopK, OfRowsAsLongAsK) {
  for (const int64_t k : {1, 63, 64, 65}) {
    for (const int64_t entries :
         {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, k - 1, k, k + 1}) {
      for (const ScoreKind kind : {ScoreKind::normal, ScoreKind::special, ScoreKind::equal}) {
        const SelectCase c{.entries = entries, .k = k, .kind = kind};
        EXPECT_EQ(check_top_k(c), "") << to_text(c);
      }
    }
  }
}

TEST(TopK, OfWhatIsVisible) {
  Sample sample;
  for (const char* visible :
       {"causal", "window(3)", "window(200, 100)", "dilated(7)", "causal & dilated(3)",
        "causal | dilated(5, 9)", "random(9, 1, 7)", "prefix(70)", "~dense", "sinks(3) | window(9)",
        "global_at(17, 63, 64)", "blocks(48)"}) {
    for (const char* always : {"", "window(2)", "sinks(1) | window(1)", "dense", "dilated(50)"}) {
      for (const ScoreKind kind : {ScoreKind::normal, ScoreKind::special, ScoreKind::few_values}) {
        if (!sample.takes_next()) continue;
        const SelectCase c{.batch = 2,
                           .groups = 2,
                           .q_len = 150,
                           .entries = 150,
                           .k = 9,
                           .visible = pattern_or_none(visible),
                           .always = pattern_or_none(always),
                           .kind = kind};
        EXPECT_EQ(check_top_k(c), "") << to_text(c);
      }
    }
  }
}

TEST(TopK, OfPlansPerGroup) {
  for (const ScoreKind kind : {ScoreKind::normal, ScoreKind::rising}) {
    const SelectCase c{.batch = 2,
                       .groups = 3,
                       .q_len = 70,
                       .entries = 90,
                       .k = 6,
                       .visible = parse("per_head(causal, window(9), dilated(4))"),
                       .always = parse("per_head(sinks(2), ~dense, window(1))"),
                       .one_plan_for_all = false,
                       .kind = kind};
    EXPECT_EQ(check_top_k(c), "") << to_text(c);
  }
}

// Rows that begin late, and are long: the sample must be taken where the row is.
TEST(TopK, OfLongVisibleRows) {
  for (const char* visible :
       {"window(6000)", "causal", "dilated(3)", "window(9000) & dilated(2)"}) {
    const SelectCase c{.q_len = 3,
                       .entries = 20000,
                       .k = 700,
                       .visible = pattern_or_none(visible),
                       .always = window(20)};
    EXPECT_EQ(check_top_k(c), "") << to_text(c);
  }
}

// `always` is taken whatever its scores are; of more than k the lowest.
TEST(TopK, TakesAlwaysFirst) {
  SelectCase c{.q_len = 1, .entries = 100, .k = 5, .always = window(2)};
  c.kind = ScoreKind::nothing;
  SelectProblem p(c);
  top_k(p.given_scores.view(), p.selection(), p.options());
  EXPECT_EQ(p.indices.row(0), (std::vector<int32_t>{97, 98, 99, -1, -1}));
  c.always = dense();
  SelectProblem all(c);
  top_k(all.given_scores.view(), all.selection(), all.options());
  EXPECT_EQ(all.indices.row(0), (std::vector<int32_t>{0, 1, 2, 3, 4}));
}

TEST(TopK, OfEqualScoresTakesTheLowestEntries) {
  const SelectCase c{.q_len = 1, .entries = 9000, .k = 300, .kind = ScoreKind::zeros};
  SelectProblem p(c);
  top_k(p.given_scores.view(), p.selection(), p.options());
  std::vector<int32_t> lowest(300);
  std::iota(lowest.begin(), lowest.end(), 0);
  EXPECT_EQ(p.indices.row(0), lowest);
}

TEST(TopK, IsTheSameEveryTimeAndInAnyOrderOfRows) {
  SelectCase c{.batch = 2, .groups = 2, .q_len = 30, .entries = 5000, .k = 100};
  c.kind = ScoreKind::few_values;
  SelectProblem first(c);
  top_k(first.given_scores.view(), first.selection(), first.options());
  for (int run = 0; run < 20; ++run) {
    c.threads = 1 + run % 4;
    SelectProblem again(c);
    top_k(again.given_scores.view(), again.selection(), again.options());
    for (int64_t i = 0; i < 120; ++i) ASSERT_EQ(again.indices.row(i), first.indices.row(i));
  }
  // The batch entries in the other order: negative strides are refused, so a copy.
  SelectProblem swapped(c);
  const int64_t half = swapped.given_scores.num_elements() / 2;
  for (int64_t i = 0; i < 2 * half; ++i) {
    swapped.given_scores.set(i, first.given_scores.get((i + half) % (2 * half)));
  }
  top_k(swapped.given_scores.view(), swapped.selection(), swapped.options());
  for (int64_t i = 0; i < 120; ++i) {
    EXPECT_EQ(swapped.indices.row(i), first.indices.row((i + 60) % 120));
  }
}

}  // namespace
}  // namespace keyhole::test
