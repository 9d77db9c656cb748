// tests/select/index_loss_test.cpp
// The index loss and its gradients against their definition, and the definition against finite
// differences.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "support/loss_cases.h"
#include "support/scale.h"

namespace keyhole::test {
namespace {

void check_all(const std::vector<LossCase>& cases) {
  for (const LossCase& c : cases) EXPECT_EQ(check_loss(c), "") << to_text(c);
}

TEST(IndexLoss, OfPlansAgreesWithTheDefinition) {
  check_all(loss_cases_of_plans(std::array{DType::f32, DType::f64, DType::bf16}));
}

TEST(IndexLoss, OfSelectedKeysAgreesWithTheDefinition) {
  check_all(
      loss_cases_of_selected_keys(std::array{DType::f32, DType::f64, DType::f16, DType::e4m3}));
}

TEST(IndexLoss, OfEntriesThatStandForSeveralKeys) {
  check_all(loss_cases_of_pooled_keys(std::array{DType::f32, DType::f64, DType::bf16}));
}

TEST(IndexLoss, OfTheCasesOfTensorCores) { check_all(loss_cases_of_tensor_cores(DType::bf16)); }

TEST(IndexLoss, OfAnyHeads) { check_all(loss_cases_of_heads()); }

TEST(IndexLoss, KnowsSoftcapScaleAndKeysElsewhere) { check_all(loss_cases_of_rules()); }

TEST(IndexLoss, OfSomeRows) {
  check_all(loss_cases_of_rows());
  // No row at all: everything is 0.
  const LossCase c{.q_len = 4, .entries = 4};
  LossProblem p(c);
  IndexLossOptions none = p.options();
  const int32_t unused = 0;
  none.rows = IndexView(&unused, {1, 1, 1, 0});
  index_loss_forward(p.indexer(), p.target(), p.lists(), p.loss.view(), p.stats.view(), none);
  index_loss_backward(p.dloss.view(), p.indexer(), p.target(), p.lists(), p.stats.view(),
                      {p.dq.view(), p.dk.view(), p.dw.view()}, none);
  for (const PoisonedTensor* tensor : {&p.loss, &p.dq, &p.dk, &p.dw}) {
    for (const double x : tensor->values()) EXPECT_EQ(x, 0);
  }
}

// Where nobody chose, a gradient is exactly 0; queries without keys have neither loss nor gradient.
TEST(IndexLoss, IsZeroWhereNothingIsListed) {
  const LossCase c{.q_len = 30, .entries = 200, .pattern = window(3), .selected = 2};
  LossProblem p(c);
  p.forward();
  p.backward();
  const EntryPredicate listed = p.listed();
  for (int64_t s = 0; s < c.entries; ++s) {
    bool is_chosen = false;
    for (int64_t t = 0; t < c.q_len; ++t) is_chosen = is_chosen || listed(0, 0, t, s);
    for (int64_t x = 0; x < c.head_dim && !is_chosen; ++x) {
      EXPECT_EQ(p.dk.get(s * c.head_dim + x), 0) << s;
    }
  }
  const LossCase empty{.q_len = 5, .entries = 8, .pattern = ~dense()};
  EXPECT_EQ(check_loss(empty), "");
}

// Whatever an entry holds that a query does not list, neither its loss nor its gradients notice.
// Entries of all kinds share a panel.
TEST(IndexLoss, DoesNotReadWhatIsNotListed) {
  for (const int64_t selected : {0, 2}) {
    for (const double number : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      const LossCase c{
          .q_len = 3, .entries = 100, .pattern = parse("dilated(7)"), .selected = selected};
      LossProblem p(c), clean(c);
      const EntryPredicate listed = p.listed();
      int64_t num_spoilt = 0;
      for (int64_t s = 0; s < c.entries; ++s) {
        if (listed(0, 0, 0, s) || listed(0, 0, 1, s) || listed(0, 0, 2, s)) continue;
        ++num_spoilt;
        for (int64_t x = 0; x < c.head_dim; ++x) p.k.set(s * c.head_dim + x, number);
        for (int64_t x = 0; x < c.target_dim; ++x) p.target_k.set(s * c.target_dim + x, number);
      }
      EXPECT_GT(num_spoilt, 40);
      for (LossProblem* each : {&p, &clean}) each->forward(), each->backward();
      EXPECT_EQ(p.loss.bits(), clean.loss.bits());
      EXPECT_EQ(p.dq.bits(), clean.dq.bits());
      EXPECT_EQ(p.dk.bits(), clean.dk.bits());
      EXPECT_EQ(p.dw.bits(), clean.dw.bits());
    }
  }
}

// Query 1 holds NaN. It spoils its own loss and gradients, not those of other queries, and not dk
// of entries that only others list.
TEST(IndexLoss, AQueryIsNotSeenByEntriesThatItDoesNotList) {
  const LossCase c{.q_len = 3, .entries = 100, .pattern = parse("dilated(7)")};
  LossProblem p(c), clean(c);
  const EntryPredicate listed = p.listed();
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t x = 0; x < c.head_dim; ++x) {
      p.q.set((h * c.q_len + 1) * c.head_dim + x, std::numeric_limits<double>::infinity());
    }
  }
  for (LossProblem* each : {&p, &clean}) each->forward(), each->backward();
  for (int64_t s = 0; s < c.entries; ++s) {
    if (listed(0, 0, 1, s)) continue;
    for (int64_t x = s * c.head_dim; x < (s + 1) * c.head_dim; ++x) {
      EXPECT_EQ(p.dk.get(x), clean.dk.get(x)) << s;
    }
  }
  EXPECT_EQ(p.loss.get(0), clean.loss.get(0));
  EXPECT_EQ(p.loss.get(2), clean.loss.get(2));
}

TEST(IndexLoss, HasTheSameBitsForAnyNumberOfThreads) {
  for (const int64_t selected : {0, 33}) {
    LossCase c{.groups = 2,
               .heads = 5,
               .target_heads = 4,
               .kv_heads = 2,
               .q_len = 150,
               .entries = 400,
               .selected = selected};
    std::vector<std::vector<uint64_t>> bits;
    for (const int threads : {1, 2, 3, 8}) {
      c.threads = threads;
      LossProblem p(c);
      p.forward();
      p.backward();
      const std::vector<std::vector<uint64_t>> here = {p.loss.bits(), p.stats.bits(), p.dq.bits(),
                                                       p.dk.bits(), p.dw.bits()};
      if (bits.empty()) bits = here;
      EXPECT_EQ(here, bits) << threads;
    }
  }
}

// A loss is 0 exactly where the indexer knows the weights; it is never negative.
TEST(IndexLoss, IsADivergence) {
  const LossCase c{.heads = 1, .q_len = 60, .entries = 60, .dtype = DType::f64};
  LossProblem p(c);
  p.forward();
  for (const double x : p.loss.values()) EXPECT_GE(x, -1e-12);
  // All weights and all scores equal.
  LossProblem even(c);
  for (int64_t i = 0; i < even.k.num_elements(); ++i) even.k.set(i, 0);
  for (int64_t i = 0; i < even.target_k.num_elements(); ++i) even.target_k.set(i, 0);
  even.forward();
  for (const double x : even.loss.values()) EXPECT_NEAR(x, 0, 1e-12);
}

// The gradients of the definition, and with them those of the kernels, are derivatives.
TEST(IndexLoss, GradientsAreDerivatives) {
  for (const auto& [selected, keys_per_entry] :
       {std::pair<int64_t, int64_t>{0, 1}, {4, 1}, {0, 3}, {4, 3}}) {
    const LossCase c{.batch = 2,
                     .groups = 2,
                     .heads = 2,
                     .head_dim = 3,
                     .target_heads = 4,
                     .kv_heads = 2,
                     .target_dim = 5,
                     .q_len = 6,
                     .entries = 8,
                     .keys_per_entry = keys_per_entry,
                     .missing_keys = keys_per_entry - 1,
                     .dtype = DType::f64,
                     .target_dtype = DType::f64,
                     .has_scale = true,
                     .selected = selected,
                     .other_weight = 0.7};
    LossProblem p(c);
    p.forward();
    p.backward();
    const std::vector<double> dloss = p.dloss.values();
    const auto total = [&] {
      p.forward();
      double sum = 0;
      for (size_t i = 0; i < dloss.size(); ++i) sum += dloss[i] * p.loss.get(int64_t(i));
      return sum;
    };
    const auto compare = [&](PoisonedTensor& input, const PoisonedTensor& gradient) {
      constexpr double kStep = 1e-6;
      for (int64_t i = 0; i < input.num_elements(); ++i) {
        const double x = input.get(i);
        input.set(i, x + kStep);
        const double high = total();
        input.set(i, x - kStep);
        const double low = total();
        input.set(i, x);
        EXPECT_NEAR((high - low) / (2 * kStep), gradient.get(i), 1e-7) << i;
      }
    };
    compare(p.q, p.dq);
    compare(p.k, p.dk);
    compare(p.w, p.dw);
  }
}

TEST(IndexLoss, OfRandomCases) {
  for (int64_t i = 0; i < scaled(150); ++i) {
    const LossCase c = random_loss_case(uint64_t(7000 + i), {DType::f32, DType::f64, DType::bf16});
    ASSERT_EQ(check_loss(c), "") << to_text(c);
  }
}

}  // namespace
}  // namespace keyhole::test
