// tests/select/select_keys_test.cpp
// select_keys chooses what top_k chooses from the scores of index_scores, bit for bit.
#include <gtest/gtest.h>

#include <cmath>

#include "support/scale.h"
#include "support/select_checks.h"

namespace keyhole::test {
namespace {

TEST(SelectKeys, ChoosesWhatItsTwoStepsChoose) {
  Sample sample;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::f64}) {
    for (const char* visible :
         {"", "causal", "window(20)", "causal | dilated(5)", "random(9, 2, 1)"}) {
      for (const int64_t k : {1, 16, 150}) {
        if (!sample.takes_next()) continue;
        const SelectCase c{.batch = 2,
                           .groups = 2,
                           .heads = 3,
                           .q_len = 100,
                           .entries = 140,
                           .head_dim = 24,
                           .k = k,
                           .dtype = dtype,
                           .has_scale = k == 16,
                           .visible = pattern_or_none(visible),
                           .always = pattern_or_none(k == 16 ? "window(2)" : "")};
        EXPECT_EQ(check_select_keys(c), "") << to_text(c);
      }
    }
  }
}

TEST(SelectKeys, OfLongRows) {
  const SelectCase c{
      .heads = 4, .q_len = 40, .entries = 9000, .head_dim = 16, .k = 512, .visible = causal()};
  EXPECT_EQ(check_select_keys(c), "");
}

TEST(SelectKeys, TakesShortRowsWhateverTheirScores) {
  const SelectCase c{.q_len = 20, .entries = 20, .k = 8, .visible = causal()};
  SelectProblem p(c);
  for (int64_t i = 0; i < p.k.num_elements(); ++i) p.k.set(i, std::nan(""));
  select_keys(p.indexer(), p.selection(), p.options());
  for (int32_t t = 0; t < 20; ++t) {
    const std::vector<int32_t> row = p.indices.row(t);
    EXPECT_EQ(p.counts.row(t)[0], t < 8 ? t + 1 : 0) << t;
    EXPECT_EQ(row[0], t < 8 ? 0 : -1) << t;
  }
}

TEST(SelectKeys, IsTheSameForAnyNumberOfThreads) {
  SelectCase c{.groups = 2, .heads = 8, .q_len = 130, .entries = 700, .k = 64, .visible = causal()};
  SelectProblem first(c);
  select_keys(first.indexer(), first.selection(), first.options());
  for (const int threads : {1, 2, 3, 7}) {
    c.threads = threads;
    SelectProblem again(c);
    select_keys(again.indexer(), again.selection(), again.options());
    for (int64_t i = 0; i < 260; ++i) ASSERT_EQ(again.indices.row(i), first.indices.row(i));
  }
}

TEST(SelectKeys, OfNothing) {
  for (const SelectCase& c : {SelectCase{.batch = 0}, SelectCase{.groups = 0},
                              SelectCase{.q_len = 0}, SelectCase{.entries = 0}}) {
    EXPECT_EQ(check_select_keys(c), "") << to_text(c);
  }
}

// Empty arrays, as NumPy has them, may have no memory at all.
TEST(SelectKeys, OfNothingInNoMemory) {
  const TensorView q(nullptr, DType::f32, {0, 2, 3, 4}), k(nullptr, DType::f32, {0, 1, 5, 4});
  IndexView indices(static_cast<const int32_t*>(nullptr), {0, 1, 3, 2});
  EXPECT_NO_THROW(select_keys({q, k}, {indices}, {.k = 2}));
  EXPECT_NO_THROW(top_k(TensorView(nullptr, DType::f32, {0, 1, 3, 5}), {indices}, {.k = 2}));
}

// What is chosen is what attention takes as its lists.
TEST(SelectKeys, ListsGoToAttentionAsTheyAre) {
  const SelectCase c{
      .groups = 2, .heads = 2, .q_len = 33, .entries = 33, .k = 5, .visible = causal()};
  SelectProblem p(c);
  select_keys(p.indexer(), p.selection(), p.options());
  std::vector<float> out(size_t(4 * 33 * 8)), lse(size_t(4 * 33));
  attention_forward(p.q.view(), p.k.view(), p.k.view(), p.indices.view(),
                    TensorView(out.data(), DType::f32, {1, 4, 33, 8}),
                    TensorView(lse.data(), DType::f32, {1, 4, 33}));
  for (const float x : lse) EXPECT_TRUE(std::isfinite(x));
}

TEST(SelectKeys, SaysWhichKernelsRun) {
  const SelectCase c{.dtype = DType::bf16};
  SelectProblem p(c);
  const std::string text = kernel_for_selection(p.indexer(), p.options());
  EXPECT_TRUE(text.starts_with("cpu.select_keys.bf16")) << text;  // .amx where there is AMX
}

}  // namespace
}  // namespace keyhole::test
