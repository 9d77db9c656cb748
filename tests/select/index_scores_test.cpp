// tests/select/index_scores_test.cpp
// Scores against their definition in fp64, on the numbers as they are stored.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/scale.h"
#include "support/select_checks.h"

namespace keyhole::test {
namespace {

constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::f64};

TEST(IndexScores, AgreeWithTheDefinition) {
  Sample sample;
  for (const DType dtype : kDTypes) {
    for (const int64_t heads : {1, 3, 64}) {
      for (const int64_t entries : {1, 63, 64, 65, 200}) {
        if (!sample.takes_next()) continue;
        const SelectCase c{.batch = 2,
                           .groups = 2,
                           .heads = heads,
                           .q_len = 19,
                           .entries = entries,
                           .head_dim = 17,
                           .dtype = dtype,
                           .has_w = heads != 3,
                           .has_scale = entries != 64,
                           .layout = Layout::padded};
        EXPECT_EQ(check_scores(c), "") << to_text(c);
      }
    }
  }
}

TEST(IndexScores, InAnyLayoutAndHeadDim) {
  for (const Layout layout : {Layout::contiguous, Layout::bshd, Layout::padded, Layout::sliced,
                              Layout::odd_offset, Layout::odd_strides}) {
    for (const int64_t head_dim : {1, 64, 128, 576}) {
      const SelectCase c{.batch = 2,
                         .groups = 2,
                         .q_len = 3,
                         .entries = 70,
                         .head_dim = head_dim,
                         .dtype = head_dim == 64 ? DType::e4m3 : DType::bf16,
                         .has_scale = true,
                         .layout = layout};
      EXPECT_EQ(check_scores(c), "") << to_text(c);
    }
  }
}

TEST(IndexScores, AreMinusInfinityWhereNothingIsVisible) {
  for (const char* visible : {"causal", "window(5)", "dilated(7)", "global_at(3, 31) & causal",
                              "causal | dilated(5)", "random(3, 1, 7)", "~dense"}) {
    for (const int64_t q_len : {1, 130}) {
      const SelectCase c{.groups = 2,
                         .q_len = q_len,
                         .entries = 150,
                         .has_scale = true,
                         .visible = pattern_or_none(visible),
                         .layout = Layout::padded};
      EXPECT_EQ(check_scores(c), "") << to_text(c);
    }
  }
}

TEST(IndexScores, HaveTheSameBitsForAnyNumberOfThreads) {
  SelectCase c{.batch = 2, .groups = 3, .heads = 5, .q_len = 70, .entries = 300, .head_dim = 40};
  std::vector<uint64_t> bits;
  for (const int threads : {1, 2, 5}) {
    c.threads = threads;
    SelectProblem p(c);
    index_scores(p.indexer(), p.scores.view(), p.options());
    if (bits.empty()) bits = p.scores.bits();
    EXPECT_EQ(p.scores.bits(), bits) << threads;
  }
}

// As relu of others has it, and so that such an entry is never chosen.
TEST(IndexScores, NaNStaysNaN) {
  const SelectCase c{.q_len = 2, .entries = 70, .k = 70};
  SelectProblem p(c);
  p.k.set(9 * c.head_dim + 3, std::nan(""));
  index_scores(p.indexer(), p.scores.view(), p.options());
  for (int64_t i = 0; i < p.scores.num_elements(); ++i) {
    EXPECT_EQ(std::isnan(p.scores.get(i)), i % c.entries == 9) << i;
  }
  top_k(p.scores.view(), p.selection(), p.options());
  EXPECT_EQ(p.counts.row(0)[0], 69);
}

TEST(IndexScores, OfNothingWriteNothing) {
  for (SelectCase c : {SelectCase{.batch = 0}, SelectCase{.groups = 0}, SelectCase{.q_len = 0},
                       SelectCase{.entries = 0}}) {
    EXPECT_EQ(check_scores(c), "") << to_text(c);
  }
}

}  // namespace
}  // namespace keyhole::test
