// tests/base/entmax_test.cpp
// The map of alpha-entmax on lists: known values, its laws, and the accuracy of the solver in fp32
// and fp64 against bisection in long double.
#include "base/entmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "reference/sparse_weights.h"

namespace keyhole {
namespace {

constexpr double kAlphas[] = {1, 1 + 1e-9, 1.001, 1.02, 1.1, 1.25, 1.3, 4. / 3, 1.5, 1.75, 1.99, 2};

template <class Number>
std::vector<Number> weights(double alpha, const std::vector<Number>& scores) {
  const EntmaxPower power = EntmaxPower::of(alpha);
  const auto lambda = solve_entmax(power, scores.data(), int64_t(scores.size()));
  const auto rule = EntmaxRule<EntmaxMath<Number>>::of(power);
  std::vector<Number> result;
  for (const Number score : scores) {
    result.push_back(rule.terms((score - lambda.top) - lambda.above).weight);
  }
  return result;
}

template <class Number>
double lambda_of(double alpha, const std::vector<Number>& scores) {
  return double(
      solve_entmax(EntmaxPower::of(alpha), scores.data(), int64_t(scores.size())).value());
}
double tau_of(double alpha, const std::vector<double>& scores) {
  return (alpha - 1) * lambda_of(alpha, scores) - 1;
}

void expect_weights(double alpha, const std::vector<double>& scores, double tau,
                    const std::vector<double>& want) {
  const auto got = weights(alpha, scores);
  const auto got_f32 = weights(alpha, std::vector<float>(scores.begin(), scores.end()));
  const auto by_bisection =
      sparse_weights(entmax(alpha), std::vector<long double>(scores.begin(), scores.end()),
                     -std::numeric_limits<long double>::infinity());
  EXPECT_NEAR(tau_of(alpha, scores), tau, 1e-11 * (1 + std::abs(tau))) << alpha;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 2e-12) << "alpha " << alpha << " weight " << i;
    EXPECT_NEAR(double(by_bisection.weight[i]), want[i], 2e-12) << "alpha " << alpha;
    EXPECT_NEAR(got_f32[i], want[i], 3e-7) << "alpha " << alpha << " weight " << i;
  }
}

TEST(Entmax, KnownValues) {
  const double root = std::sqrt(7.);
  expect_weights(1.5, {1, 0, -1}, (1 - root) / 4, {(4 + root) / 8, (4 - root) / 8, 0});
  expect_weights(2, {1, 0, -1}, 0, {1, 0, 0});
  expect_weights(1.5, {0, -2}, -1, {1, 0});
  expect_weights(1.5, {1000.5, 1000, 999}, 499.430754009,
                 {.671163994158, .324040998540, .00479500730241});
  expect_weights(1.25, {1, .5, -2}, -.646353785977,
                 {.645532078674, .354009129316, .000458792010221});
  expect_weights(2, {3, 3, 2.5, 2.5, 0}, 2.5, {.5, .5, 0, 0, 0});
  expect_weights(1.5, {7}, 2.5, {1});
}

TEST(Entmax, EqualScoresShareEqually) {
  // n x^r = 1: (1 - (alpha - 1) lambda)^-r = n, the count probe.
  for (const double alpha : kAlphas) {
    for (const int n : {1, 2, 7, 64, 1000, 65536}) {
      const std::vector<double> scores(size_t(n), 0.);
      const double lambda = lambda_of(alpha, scores), bend = alpha - 1;
      const double counted =
          alpha == 1 ? std::exp(lambda) : std::exp(-std::log1p(-bend * lambda) / bend);
      EXPECT_NEAR(counted, n, 1e-9 * n * std::max(1., 1e-6 / std::max(bend, 1e-9))) << alpha;
      for (const double weight : weights(alpha, scores)) ASSERT_NEAR(weight * n, 1, 1e-9) << alpha;
    }
  }
}

std::vector<double> draw(std::mt19937& random, int kind, int longest = 300) {
  std::normal_distribution<double> normal;
  const int n = 1 + int(random() % unsigned(longest));
  std::vector<double> scores;
  for (int i = 0; i < n; ++i) {
    switch (kind) {
      case 0:
        scores.push_back(normal(random));
        break;
      case 1:
        scores.push_back(0.1 * normal(random));
        break;
      case 2:
        scores.push_back(8 * normal(random));
        break;
      case 3:
        scores.push_back(std::round(4 * normal(random)) / 4);
        break;
      case 4:
        scores.push_back(1e4 + normal(random));
        break;
      case 5:
        scores.push_back(i == n / 2 ? 20. : normal(random));
        break;
      default:
        scores.push_back(8. * i / n);
        break;
    }
  }
  return scores;
}
constexpr int kKinds = 7;

template <class Number>
void expect_accuracy(int longest, double allowed) {
  std::mt19937 random(11);
  for (const double alpha : kAlphas) {
    double worst = 0;
    for (int trial = 0; trial < 20 * kKinds; ++trial) {
      std::vector<Number> scores;
      for (const double score : draw(random, trial % kKinds, longest))
        scores.push_back(Number(score));
      const auto want =
          sparse_weights(entmax(alpha), std::vector<long double>(scores.begin(), scores.end()),
                         -std::numeric_limits<long double>::infinity());
      const auto got = weights(alpha, scores);
      double sum = 0;
      for (size_t i = 0; i < scores.size(); ++i) {
        worst = std::max(worst, std::abs(double(got[i]) - double(want.weight[i])));
        sum += double(got[i]);
      }
      EXPECT_NEAR(sum, 1, 2 * allowed) << "alpha " << alpha << " kind " << trial % kKinds;
    }
    EXPECT_LE(worst, allowed) << "alpha " << alpha;
  }
}
// A plain sum in fp32: longer lists are summed in pieces by the kernels.
TEST(Entmax, SolvesListsToTheLastDigitsOfFp32) { expect_accuracy<float>(96, 5e-7); }
TEST(Entmax, SolvesListsToTheLastDigitsOfFp64) { expect_accuracy<double>(300, 2e-15); }

TEST(Entmax, NewtonNeverPassesTheSolution) {
  std::mt19937 random(3);
  for (const double alpha : {1., 1.1, 1.25, 1.75, 2.}) {
    const EntmaxPower power = EntmaxPower::of(alpha);
    for (int trial = 0; trial < 100; ++trial) {
      const auto scores = draw(random, trial % kKinds);
      const double top = *std::max_element(scores.begin(), scores.end());
      const double solution = lambda_of(alpha, scores) - top;
      double above = 0;
      for (int round = 0; round < 6; ++round) {
        EXPECT_LE(above, solution + 1e-12 * (1 + std::abs(solution)));
        above += lambda_step(power,
                             entmax_sums(power, scores.data(), int64_t(scores.size()), top, above));
      }
    }
  }
}

TEST(Entmax, LambdaOfASubsetIsALowerBound) {
  std::mt19937 random(5);
  for (const double alpha : kAlphas) {
    for (int trial = 0; trial < 50; ++trial) {
      const auto scores = draw(random, trial % kKinds);
      std::vector<double> some;
      for (const double score : scores) {
        if (random() % 3 == 0) some.push_back(score);
      }
      if (some.empty()) continue;
      const double whole = lambda_of(alpha, scores);
      EXPECT_LE(lambda_of(alpha, some), whole + 1e-12 * std::abs(whole)) << alpha;
      const double top = *std::max_element(scores.begin(), scores.end());
      EXPECT_GE(whole, top - 1e-12 * std::abs(top));
      EXPECT_LE(whole, top + std::log(double(scores.size())) + 1e-9);
    }
  }
}

TEST(Entmax, LawsOfShiftOrderAndPermutation) {
  std::mt19937 random(7);
  for (const double alpha : kAlphas) {
    for (int trial = 0; trial < 30; ++trial) {
      const auto scores = draw(random, trial % 4);
      const auto base = weights(alpha, scores);
      std::vector<double> shifted, turned(scores.rbegin(), scores.rend());
      for (const double score : scores) shifted.push_back(score + 3);
      const auto moved = weights(alpha, shifted), back = weights(alpha, turned);
      for (size_t i = 0; i < scores.size(); ++i) {
        EXPECT_NEAR(moved[i], base[i], 1e-13) << alpha;
        EXPECT_NEAR(back[scores.size() - 1 - i], base[i], 1e-13) << alpha;
        for (size_t j = 0; j < i; j += 7) {
          if (scores[i] >= scores[j]) {
            EXPECT_GE(base[i], base[j]);
          }
        }
      }
      EXPECT_NEAR(lambda_of(alpha, shifted), lambda_of(alpha, scores) + 3, 1e-12) << alpha;
    }
  }
}

TEST(Entmax, TendsToSoftmax) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 20; ++trial) {
    const auto scores = draw(random, trial % 2);
    const auto softmax_weights = weights(1, scores);
    for (const double bend : {1e-3, 1e-6, 1e-9}) {
      const auto near = weights(1 + bend, scores);
      for (size_t i = 0; i < scores.size(); ++i) {
        EXPECT_NEAR(near[i], softmax_weights[i], 30 * bend) << bend;
      }
      EXPECT_NEAR(lambda_of(1 + bend, scores), lambda_of(1, scores), 30 * bend);
    }
  }
}

TEST(Entmax, SlopeIsTheDerivative) {
  constexpr double kStep = 1e-6;
  for (const double alpha : kAlphas) {
    const auto rule = EntmaxRule<EntmaxMath<double>>::of(EntmaxPower::of(alpha));
    for (const double distance : {-3.7, -1.2, -0.6, -0.3, -0.01}) {
      if (1 + (alpha - 1) * distance < 1e-3 && alpha != 1) {
        if (1 + (alpha - 1) * distance < 0) {
          EXPECT_EQ(rule.terms(distance).weight, 0);
          EXPECT_EQ(rule.terms(distance).slope, 0);
        }
        continue;
      }
      const double difference =
          (rule.terms(distance + kStep).weight - rule.terms(distance - kStep).weight) / (2 * kStep);
      EXPECT_NEAR(rule.terms(distance).slope, difference, 1e-8) << alpha << " at " << distance;
    }
  }
}

TEST(Entmax, TheOrderOfTopK) {
  EXPECT_TRUE(ranks_before(2., 9, 1., 3));
  EXPECT_FALSE(ranks_before(1., 3, 2., 9));
  EXPECT_TRUE(ranks_before(1., 3, 1., 9));
  EXPECT_FALSE(ranks_before(1., 9, 1., 3));
  EXPECT_FALSE(ranks_before(1., 3, 1., 3));
}

TEST(Entmax, AnEmptyListHasNoLambda) {
  const std::vector<double> nothing;
  for (const double alpha : kAlphas) {
    EXPECT_EQ(lambda_of(alpha, nothing), -INFINITY);
  }
}

// What a scan relies on that drops keys before it has met all of them.
TEST(Entmax, StepsBelowNeverPassTheSolution) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (const double alpha : {1.01, 1.1, 1.25, 1.5, 1.7, 2.}) {
    const EntmaxPower power = EntmaxPower::of(alpha);
    for (int repeat = 0; repeat < 50; ++repeat) {
      std::vector<double> scores(300);
      for (double& score : scores) score = 3 * normal(random);
      const double lambda = solve_entmax(power, scores.data(), 300).value();
      const double top = *std::max_element(scores.begin(), scores.end());
      double above = 0;
      for (int round = 0; round < 12; ++round) {
        const auto sums = entmax_sums(power, scores.data(), 300, top, above);
        above += lambda_step_below(power, sums);
        EXPECT_LE(top + above, lambda + 1e-12) << alpha << ", round " << round;
        EXPECT_LT(lowest_score(power, top + above), lambda - power.reach()) << alpha;
      }
      EXPECT_NEAR(top + above, lambda, 1e-9) << alpha;
    }
  }
}

// What passes over tiles rely on: few steps, from a start that only the largest score gives.
TEST(Entmax, StepsWithTheSecondDerivativeAreFew) {
  std::mt19937 random(5);
  for (const double alpha : {1.05, 1.1, 1.25, 4. / 3, 1.4}) {
    const EntmaxPower power = EntmaxPower::of(alpha);
    for (int repeat = 0; repeat < 10 * kKinds; ++repeat) {
      const auto scores = draw(random, repeat % kKinds, 2000);
      double tau = power.bend * *std::max_element(scores.begin(), scores.end()) - 1;
      const auto take_step = [&] {
        double weight = 0, slope = 0, curve = 0;
        for (const double score : scores) {
          const double x = power.bend * score - tau;
          if (x <= 0) continue;
          weight += std::pow(x, power.power);
          slope += std::pow(x, power.power - 1);
          curve += std::pow(x, power.power - 2);
        }
        tau += tau_step(power.power, weight, slope, curve);
        return std::abs(weight - 1);
      };
      int steps = 0;
      while (take_step() > 0.1 && steps < 12) ++steps;
      EXPECT_LE(steps, 4) << alpha << ", kind " << repeat % kKinds;
      EXPECT_LT(take_step(), 2e-3) << alpha << ", kind " << repeat % kKinds;  // from within 0.1
    }
  }
}

}  // namespace
}  // namespace keyhole
