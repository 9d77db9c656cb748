// tests/base/weight_rule_test.cpp
// The weight rule against the formulas of a textbook, written out in long double.
#include "base/weight_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace keyhole {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();
constexpr double kProducts[] = {0, 1e-9, -1e-3, 0.5, -2, 7.25, -31, 180, -2400};
constexpr double kStatistics[] = {-3, 0, 0.75, 40};

const WeightRule kRules[] = {
    {.scale = 1},
    {.scale = 0.125},
    {.scale = -0.6},
    {.scale = 0},
    {.scale = 0.125, .softcap = 30},
    {.scale = 1, .softcap = 0.7},
    {.scale = -0.6, .softcap = 5},
    {.scale = 0, .softcap = 2},
};

std::string words(const WeightRule& rule, double product) {
  return say("scale ", rule.scale, ", softcap ", rule.softcap, ", product ", product);
}

struct Textbook {
  long double score, steepness;  // steepness: d score / d product
};
Textbook textbook(const WeightRule& rule, long double product) {
  const long double scale = rule.scale, cap = rule.softcap, plain = scale * product;
  if (!rule.has_softcap()) return {plain, scale};
  const long double cosine = std::cosh(plain / cap);
  return {cap * std::tanh(plain / cap), scale / (cosine * cosine)};
}

template <class Visit>
void for_each_rule_and_product(Visit visit) {
  for (const WeightRule& rule : kRules) {
    for (const double product : kProducts) {
      SCOPED_TRACE(words(rule, product));
      visit(rule, product);
    }
  }
}

TEST(WeightRule, FollowsTheTextbook) {
  for_each_rule_and_product([](const WeightRule& given, double product) {
    const auto rule = SoftmaxRule<NaturalMath<double>>::of(given);
    const Textbook want = textbook(given, product);
    const double bent = rule.bend(product), score = rule.score(bent);
    EXPECT_NEAR(score, double(want.score), 4 * kEpsilon * std::abs(double(want.score)));
    // 1 - tanh^2 cancels: its rounding counts against the steepness of 0.
    EXPECT_NEAR(rule.steepness(bent), double(want.steepness), 4 * kEpsilon * std::abs(given.scale));
    for (const double statistic : kStatistics) {
      const double weight = double(std::exp(want.score - static_cast<long double>(statistic)));
      if (!std::isfinite(weight)) continue;
      // The power multiplies what its argument is off by.
      const double error =
          4 * kEpsilon * weight * (1 + std::abs(double(want.score)) + std::abs(statistic));
      EXPECT_NEAR(rule.weight(score, statistic), weight, error);
      EXPECT_NEAR(rule.weight_of_bent(bent, -statistic), weight, error);
      EXPECT_NEAR(rule.slope(rule.weight(score, statistic)), weight, error);
    }
  });
}

TEST(WeightRule, KeepsTheDigitsOfAWiderNumber) {
  constexpr double kWideEpsilon = double(std::numeric_limits<long double>::epsilon());
  for_each_rule_and_product([](const WeightRule& given, double product) {
    const auto rule = SoftmaxRule<NaturalMath<long double>>::of(given);
    const long double want = textbook(given, product).score;
    const long double score = rule.score(rule.bend(static_cast<long double>(product)));
    EXPECT_NEAR(double(score - want), 0, 4 * kWideEpsilon * std::abs(double(want)));
  });
}

TEST(WeightRule, SlopeAndSteepnessAreDerivatives) {
  constexpr double kStep = 1e-5, kTolerance = 1e-8;
  for_each_rule_and_product([](const WeightRule& given, double product) {
    if (std::abs(product) > 200) return;  // the step would vanish beside it
    const auto rule = SoftmaxRule<NaturalMath<double>>::of(given);
    const auto score_at = [&](double x) { return rule.score(rule.bend(x)); };
    EXPECT_NEAR(rule.steepness(rule.bend(product)),
                (score_at(product + kStep) - score_at(product - kStep)) / (2 * kStep), kTolerance);

    const double score = score_at(product);
    for (const double above : {0.0, 0.5, 8.0}) {  // a row's lse lies above its scores
      const double lse = score + above;
      EXPECT_NEAR(rule.slope(rule.weight(score, lse)),
                  (rule.weight(score + kStep, lse) - rule.weight(score - kStep, lse)) / (2 * kStep),
                  kTolerance);
    }
  });
}

TEST(WeightRule, EitherIsNoneOrSoftcap) {
  using Math = NaturalMath<double>;
  const auto expect_same = [](const auto& a, const auto& b, double product) {
    EXPECT_EQ(a.is_bent(), b.is_bent());
    EXPECT_EQ(a.bend(product), b.bend(product));
    const double bent = a.bend(product), score = a.score(bent);
    EXPECT_EQ(score, b.score(bent));
    EXPECT_EQ(a.steepness(bent), b.steepness(bent));
    EXPECT_EQ(a.weight(score, 0.75), b.weight(score, 0.75));
    EXPECT_EQ(a.fold_factor(), b.fold_factor());
  };
  for_each_rule_and_product([&](const WeightRule& given, double product) {
    const auto either = SoftmaxRule<Math, Bend::either>::of(given);
    if (!given.has_softcap()) {
      expect_same(either, SoftmaxRule<Math, Bend::none>::of(given), product);
    } else if (given.scale != 0) {
      expect_same(either, SoftmaxRule<Math, Bend::softcap>::of(given), product);
    } else {  // nothing is left to bend, and all agree on it
      const auto capped = SoftmaxRule<Math, Bend::softcap>::of(given);
      EXPECT_EQ(either.score(either.bend(product)), 0);
      EXPECT_EQ(capped.score(capped.bend(product)), 0);
      EXPECT_EQ(either.steepness(either.bend(product)), 0);
      EXPECT_EQ(capped.steepness(capped.bend(product)), 0);
    }
  });
}

TEST(WeightRule, ASoftcapTooLargeToBendLeavesScoresAlone) {
  const WeightRule given = {.scale = 0.5, .softcap = 1e60};  // scale / softcap is 0 in fp32
  const auto rule = SoftmaxRule<NaturalMath<float>>::of(given);
  EXPECT_EQ(rule.score(rule.bend(3.f)), 1.5f);
  EXPECT_EQ(rule.steepness(rule.bend(3.f)), 0.5f);
}

TEST(WeightRule, BasesAgreeOnWeights) {
  for_each_rule_and_product([](const WeightRule& given, double product) {
    const auto natural = SoftmaxRule<NaturalMath<double>>::of(given);
    const auto base_2 = SoftmaxRule<Base2Math<double>>::of(given);
    const double score = natural.score(natural.bend(product)), lse = score + 1.5;
    const double weight = natural.weight(score, lse);
    EXPECT_NEAR(base_2.weight(base_2.score(base_2.bend(product)), lse * kLog2E), weight,
                8 * kEpsilon * weight * (1 + std::abs(score)));
    EXPECT_EQ(base_2.steepness(base_2.bend(product)), natural.steepness(natural.bend(product)));
  });
}

TEST(WeightRule, FoldedProductsGiveTheSameScores) {
  for_each_rule_and_product([](const WeightRule& given, double product) {
    const auto rule = SoftmaxRule<Base2Math<double>>::of(given);
    const double bent = rule.bend(product), folded_product = product * rule.fold_factor();
    const double folded_bent = rule.folded().bend(folded_product);
    EXPECT_EQ(rule.folded().score(folded_bent), rule.score(bent));
    EXPECT_EQ(rule.folded().steepness(folded_bent), rule.steepness(bent));
    if (!rule.is_bent()) {
      EXPECT_EQ(rule.folded().score(folded_bent), folded_product);
    }
  });
}

TEST(WeightRule, OnlyStatisticsThatAddUpMayBeJoined) {
  EXPECT_NO_THROW(check_statistics_add_up(facts_of(softmax()), "merge", ""));
  for (const Normalizer& sparse : {softmax(8), entmax(1.5), entmax(2, 3)}) {
    EXPECT_FALSE(facts_of(sparse).statistics_add_up) << to_string(sparse);
  }

  const RuleFacts made_up = {"sharpmax", false};
  try {
    check_statistics_add_up(made_up, "merge", "attend to all keys in one call");
    FAIL() << "results were joined that cannot be";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unsupported);
    const std::string text = error.what();
    for (const char* part : {"sharpmax", "merge", "attend to all keys in one call"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace keyhole
