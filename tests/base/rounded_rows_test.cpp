// tests/base/rounded_rows_test.cpp
// Rows rounded to bf16: products stay within their margin, whatever the numbers and however tensor
// cores may add; and entmax and top_k lose no key that has weight when candidates are chosen by
// rounded products and the margin. The kernels are tests/gpu's.
#include "base/rounded_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/entmax.h"
#include "reference/sparse_weights.h"

namespace keyhole {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargestNumber = std::numeric_limits<float>::max();
constexpr float kSmallestNormal = std::numeric_limits<float>::min();
using Row = std::vector<float>;

TEST(RoundedRows, NumbersStayFiniteAndNormal) {
  EXPECT_EQ(to_f32(rounded_for_products(1.00390625f)), 1);  // ties to even
  EXPECT_EQ(to_f32(rounded_for_products(-3.f)), -3);
  EXPECT_EQ(to_f32(rounded_for_products(kLargestNumber)), 0x1.fep127f);
  EXPECT_EQ(to_f32(rounded_for_products(-kLargestNumber)), -0x1.fep127f);
  EXPECT_EQ(to_f32(rounded_for_products(kSmallestNormal)), kSmallestNormal);
  EXPECT_EQ(to_f32(rounded_for_products(std::nextafter(kSmallestNormal, 0.f))), 0);
  EXPECT_EQ(to_f32(rounded_for_products(-1e-44f)), 0);
  EXPECT_EQ(to_f32(rounded_for_products(-kInfinity)), -kInfinity);
  EXPECT_TRUE(std::isnan(to_f32(rounded_for_products(std::nanf("")))));
}

TEST(RoundedRows, NotLess) {
  for (const double x : {0., 1e-60, 1e-40, 1e-10, 1 + 1e-12, 3.4e38}) {
    EXPECT_GE(double(not_less(x)), x);
    EXPECT_LE(double(not_less(x)), std::max(x * (1 + 2e-6), x > 0 ? double(kSmallestNormal) : 0.));
  }
}

SquaredLengths lengths_of(const Row& row) {
  SquaredLengths lengths;
  for (const float x : row) lengths.add(x, rounded_for_products(x));
  return lengths;
}
LargestKey largest_of(const std::vector<Row>& keys) {
  LargestKey largest;
  for (const Row& key : keys) {
    const SquaredLengths lengths = lengths_of(key);
    largest.rounded = std::max(largest.rounded, not_less(std::sqrt(lengths.rounded)));
    largest.lost = std::max(largest.lost, not_less(std::sqrt(lengths.lost)));
  }
  return largest;
}

TEST(RoundedRows, WhatIsNotKnownHasNoMargin) {
  const LargestKey one = {1, 0};
  EXPECT_EQ(product_margin(lengths_of({1, std::nanf("")}), one), kInfinity);
  EXPECT_EQ(product_margin(lengths_of({1, -kInfinity}), one), kInfinity);
  EXPECT_EQ(product_margin(lengths_of({kInfinity}), {0, 0}), kInfinity);
  EXPECT_EQ(product_margin(lengths_of({kLargestNumber}), one), kInfinity);
  EXPECT_EQ(product_margin(lengths_of({1e20f}), {1e20f, 0}), kInfinity);
  EXPECT_LT(product_margin(lengths_of({1e18f}), {1e18f, 0}), 1e33f);
  EXPECT_LT(product_margin(lengths_of({0}), {1, 0}), 1e-30f);
  EXPECT_FALSE(lengths_of({1, std::nanf("")}).is_finite());
  EXPECT_FALSE(lengths_of({1, kInfinity}).is_finite());
  EXPECT_TRUE(lengths_of({kLargestNumber, -kLargestNumber}).is_finite());
}

// Sums as tensor cores may make them: 16 products and what came before, each cut off at `bits`
// below the largest of them, and so is the sum. Numbers that are not normal are 0.
float product_on_tensor_cores(const Row& q, const Row& k, int bits) {
  const auto cut = [](double x, int exponent) {
    return std::ldexp(std::trunc(std::ldexp(x, -exponent)), exponent);
  };
  double sum = 0;
  for (size_t first = 0; first < q.size(); first += 16) {
    std::vector<double> terms = {sum};
    for (size_t x = first; x < std::min(first + 16, q.size()); ++x) {
      terms.push_back(double(to_f32(rounded_for_products(q[x]))) *
                      double(to_f32(rounded_for_products(k[x]))));
    }
    double most = 0;
    for (const double term : terms) most = std::max(most, std::abs(term));
    if (most < double(kSmallestNormal)) {
      sum = 0;
      continue;
    }
    const int exponent = std::ilogb(most) - bits;
    sum = 0;
    for (const double term : terms) sum += cut(term, exponent);
    sum = sum == 0 ? 0 : cut(sum, std::ilogb(sum) - bits);
    if (std::abs(sum) < double(kSmallestNormal)) sum = 0;
  }
  return float(sum);
}

// What a number is like: as hostile as rounding and sums go.
enum class NumberKind : uint8_t {
  normal,
  wide,       // exponents from 2^-40 to 2^40
  halfway,    // as far from bf16 as can be
  cancelled,  // neighbours cancel
  tiny,       // not normal, many of them
  large,
  spiked  // one number is a thousand times the others
};
constexpr NumberKind kNumberKinds[] = {NumberKind::normal,    NumberKind::wide, NumberKind::halfway,
                                       NumberKind::cancelled, NumberKind::tiny, NumberKind::large,
                                       NumberKind::spiked};

Row draw(std::mt19937& random, NumberKind kind, size_t size) {
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-40, 40);
  Row row(size);
  for (float& x : row) {
    x = normal(random);
    if (kind == NumberKind::wide) x = std::ldexp(x, exponent(random));
    if (kind == NumberKind::halfway)
      x = std::copysign(1 + 0x1p-8f * float(1 - 2 * (random() % 2)), x);
    if (kind == NumberKind::tiny) x *= 1e-39f;
    if (kind == NumberKind::large) x *= 1e18f;
  }
  if (kind == NumberKind::cancelled) {
    for (size_t i = 0; i + 1 < size; i += 2) row[i + 1] = -row[i] * (1 + 1e-4f * normal(random));
  }
  if (kind == NumberKind::spiked) row[random() % size] *= 1000;
  return row;
}

TEST(RoundedRows, ProductsStayWithinTheMargin) {
  std::mt19937 random(1);
  double worst = 0;
  for (const NumberKind of_q : kNumberKinds) {
    for (const NumberKind of_k : kNumberKinds) {
      for (const size_t size : {size_t(8), size_t(64), size_t(128)}) {
        for (int repeat = 0; repeat < 20; ++repeat) {
          const Row q = draw(random, of_q, size);
          Row k = draw(random, of_k, size);
          // The worst for Cauchy and Schwarz: a key along the query.
          if (repeat % 4 == 0) std::ranges::transform(q, k.begin(), [](float x) { return 2 * x; });
          const float margin = product_margin(lengths_of(q), largest_of({k}));
          if (margin == kInfinity) continue;
          long double exact = 0;
          double plain_error = 0;  // of a sum in fp32, which the margin makes room for
          float plain = 0;
          for (size_t x = 0; x < size; ++x) {
            exact += (long double)(q[x]) * (long double)(k[x]);
            plain = std::fma(q[x], k[x], plain);
          }
          plain_error = std::abs(double(plain - exact));
          for (const int bits : {22, 24, 30}) {
            const double error =
                std::abs(double(product_on_tensor_cores(q, k, bits) - exact)) + plain_error;
            EXPECT_LE(error, double(margin))
                << int(of_q) << " " << int(of_k) << " " << size << " " << bits;
            worst = std::max(worst, error / double(margin));
          }
        }
      }
    }
  }
  EXPECT_GT(worst, 0.3);  // the margin is not far too large
}

// Keys whose products with one query lie close together, so that rounding reorders them.
struct CloseKeys {
  Row q;
  std::vector<Row> keys;
  double scale;
  std::vector<double> scores, rounded;  // exact, and of rounded rows
  double margin;                        // of a score
};
CloseKeys draw_close_keys(std::mt19937& random, NumberKind kind, double spread, size_t size,
                          size_t count) {
  std::normal_distribution<float> normal;
  CloseKeys p;
  p.q = draw(random, kind, size);
  const Row center = draw(random, kind, size);
  for (size_t j = 0; j < count; ++j) {
    Row key = center;
    for (float& x : key) {
      x = float(double(x) * (1 + spread * double(normal(random))));
    }
    // Some are equal.
    p.keys.push_back(j % 7 == 3 ? p.keys[random() % j] : key);
  }
  double largest = 0;
  for (const Row& key : p.keys) {
    const double product =
        std::inner_product(p.q.begin(), p.q.end(), key.begin(), 0., std::plus<>(),
                           [](float a, float b) { return double(a) * double(b); });
    p.scores.push_back(product);
    p.rounded.push_back(double(product_on_tensor_cores(p.q, key, 22)));
    largest = std::max(largest, std::abs(product));
  }
  // So that all of them, some, or next to none have weight.
  const auto [low, high] = std::ranges::minmax(p.scores);
  p.scale = high > low ? std::pow(10., double(random() % 3) - 1) * 4 / (high - low) : 1;
  p.margin = p.scale * double(product_margin(lengths_of(p.q), largest_of(p.keys)));
  for (double& x : p.scores) x *= p.scale;
  for (double& x : p.rounded) x *= p.scale;
  return p;
}

// A lower bound of lambda from some of the scores, as a scan finds it.
double bound_of(const EntmaxPower& power, const std::vector<double>& scores, int rounds) {
  const double top = *std::ranges::max_element(scores);
  double above = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto sums = entmax_sums(power, scores.data(), int64_t(scores.size()), top, above);
    if (sums.weight > 1) above += 0.99999 * lambda_step_below(power, sums);
  }
  return top + above;
}

TEST(RoundedRows, WhatTheMarginDropsHasNoWeight) {
  std::mt19937 random(2);
  int64_t dropped = 0, reordered = 0;
  for (const NumberKind kind : {NumberKind::normal, NumberKind::wide, NumberKind::halfway,
                                NumberKind::cancelled, NumberKind::spiked}) {
    for (const double spread : {1e-5, 1e-4, 1e-3, 1e-2, 1.}) {
      for (const auto& [alpha, top_k] : {std::pair{1.5, 0},
                                         {2., 0},
                                         {1.75, 0},
                                         {1.4, 0},
                                         {1.25, 0},
                                         {1.5, 3},
                                         {2., 1},
                                         {1., 4},
                                         {1.25, 20}}) {
        for (int repeat = 0; repeat < 12; ++repeat) {
          const CloseKeys p = draw_close_keys(random, kind, spread, 64, 60);
          if (!std::isfinite(p.margin)) continue;
          const EntmaxPower power = EntmaxPower::of(alpha);
          const size_t count = p.scores.size();
          double least = -std::numeric_limits<double>::infinity();
          if (!power.is_softmax()) {
            // From some of the keys, or from all of them.
            const size_t some = repeat % 2 == 0 ? count : 1 + random() % count;
            const double bound = bound_of(
                power, {p.rounded.begin(), p.rounded.begin() + int64_t(some)}, 1 + repeat % 5);
            least = lowest_score(power, bound) - 2 * p.margin;
          }
          if (top_k > 0) {
            std::vector<double> sorted = p.rounded;
            std::ranges::sort(sorted, std::greater<>());
            least =
                std::max(least, std::nextafter(sorted[size_t(top_k - 1)], -1e300) - 2 * p.margin);
          }
          const double none = -std::numeric_limits<double>::infinity();
          const auto all = sparse_weights(Normalizer{alpha, top_k}, p.scores, none);
          std::vector<double> kept;
          std::vector<size_t> of_kept;
          for (size_t j = 0; j < count; ++j) {
            if (p.rounded[j] >= least) {
              kept.push_back(p.scores[j]), of_kept.push_back(j);
              continue;
            }
            ++dropped;
            EXPECT_EQ(all.weight[j], 0) << "alpha " << alpha << ", top " << top_k << ", spread "
                                        << spread << ", kind " << int(kind);
          }
          const auto some = sparse_weights(Normalizer{alpha, top_k}, kept, none);
          EXPECT_NEAR(some.lambda, all.lambda, 1e-12 * (1 + std::abs(all.lambda)));
          for (size_t i = 0; i < kept.size(); ++i) {
            EXPECT_NEAR(some.weight[i], all.weight[of_kept[i]], 1e-11);
          }
          for (size_t j = 1; j < count; ++j) {
            reordered += (p.scores[j] < p.scores[0]) != (p.rounded[j] < p.rounded[0]) ? 1 : 0;
          }
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(dropped, 1000);    // the margin is of use
  EXPECT_GT(reordered, 1000);  // and needed
}

// Errors along the query, against each other: both margins are needed, all of the second.
TEST(RoundedRows, KeysAsFarApartAsMarginsAllow) {
  const Row q(64, 1.f), low(64, 1 + 15 * 0x1p-12f), high(64, 1 + 17 * 0x1p-12f);
  const double margin = double(product_margin(lengths_of(q), largest_of({low, high})));
  const double rounded_low = double(product_on_tensor_cores(q, low, 22));
  const double rounded_high = double(product_on_tensor_cores(q, high, 22));
  EXPECT_EQ(rounded_low, 64);
  EXPECT_EQ(rounded_high, 64 * (1 + 0x1p-7));
  // Ten keys of each: all have weight, for alpha = 2.
  std::vector<double> scores(10, 64 * double(low[0])), rounded(10, rounded_low);
  scores.resize(20, 64 * double(high[0])), rounded.resize(20, rounded_high);
  const auto all = sparse_weights(entmax(2), scores, -std::numeric_limits<double>::infinity());
  EXPECT_GT(all.weight[0], 0);
  const double lowest = lowest_score(EntmaxPower::of(2), bound_of(EntmaxPower::of(2), rounded, 8));
  EXPECT_LT(rounded_low, lowest - 1.5 * margin);
  EXPECT_GE(rounded_low, lowest - 2 * margin);
}

}  // namespace
}  // namespace keyhole
