// tests/reference/attention_test.cpp
// The oracle itself: numbers worked out by hand, the lines of the contract, laws, and its gradients
// against central differences of its own forward pass.
#include "reference/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"
#include "keyhole/error.h"

namespace keyhole {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Contiguous fp64 tensors of one problem.
struct Problem {
  int64_t batch = 1, heads = 1, kv_heads = 1, q_len = 3, k_len = 3, head_dim = 2, v_head_dim = 2;
  std::vector<double> q, k, v, dout;
  std::vector<float> sink;
  AttentionOptions options;

  void draw(uint64_t seed) {
    Random random(seed);
    const auto fill = [&](std::vector<double>& values, int64_t count) {
      values.resize(size_t(count));
      for (double& value : values) value = random.normal();
    };
    fill(q, batch * heads * q_len * head_dim);
    fill(k, batch * kv_heads * k_len * head_dim);
    fill(v, batch * kv_heads * k_len * v_head_dim);
    fill(dout, batch * heads * q_len * v_head_dim);
  }
  void give_sink(std::vector<float> logits) { sink = std::move(logits); }
  // Problems are copied, so that the view of the sink is made when it is needed.
  AttentionOptions with_sink() const {
    AttentionOptions all = options;
    if (!sink.empty()) all.sink = TensorView(sink.data(), DType::f32, {int64_t(sink.size())});
    return all;
  }
  TensorView q_view() const { return {q.data(), DType::f64, {batch, heads, q_len, head_dim}}; }
  TensorView k_view() const { return {k.data(), DType::f64, {batch, kv_heads, k_len, head_dim}}; }
  TensorView v_view() const { return {v.data(), DType::f64, {batch, kv_heads, k_len, v_head_dim}}; }
  TensorView dout_view() const {
    return {dout.data(), DType::f64, {batch, heads, q_len, v_head_dim}};
  }
  ReferenceOutput forward(const Pattern& pattern) const {
    return reference_forward(pattern, q_view(), k_view(), v_view(), with_sink());
  }
  ReferenceGradients backward(const Pattern& pattern) const {
    return reference_backward(pattern, dout_view(), q_view(), k_view(), v_view(), with_sink());
  }
  double loss(const Pattern& pattern) const {
    const ReferenceOutput output = forward(pattern);
    double sum = 0;
    for (size_t i = 0; i < output.out.size(); ++i) sum += output.out[i] * dout[i];
    return sum;
  }
};

TEST(Reference, TwoKeysByHand) {
  Problem p;
  p.q_len = 1, p.k_len = 2, p.head_dim = 1, p.v_head_dim = 1;
  p.q = {2}, p.k = {0, std::log(3.0) / 2}, p.v = {10, 20}, p.dout = {1};
  p.options.scale = 1;
  const ReferenceOutput got = p.forward(dense());  // weights 1 and 3, of 4
  EXPECT_NEAR(got.out[0], 17.5, 1e-12);
  EXPECT_NEAR(got.lse[0], std::log(4.0), 1e-12);
  const ReferenceGradients grad = p.backward(dense());
  EXPECT_NEAR(grad.dv[0], 0.25, 1e-12);
  EXPECT_NEAR(grad.dv[1], 0.75, 1e-12);
  const double dscore = 0.75 * (20 - 17.5);
  EXPECT_NEAR(grad.dk[1], dscore * 2, 1e-12);
  EXPECT_NEAR(grad.dq[0], dscore * p.k[1], 1e-12);
}

TEST(Reference, ScaleDefaultsToTheRootOfHeadDim) {
  Problem p;
  p.head_dim = 4, p.draw(1);
  const auto by_default = p.forward(causal());
  p.options.scale = 0.5;
  EXPECT_EQ(by_default.out, p.forward(causal()).out);
}

TEST(Reference, AnEmptyRowIsZeroAndMinusInfinity) {
  Problem p;
  p.draw(2);
  const auto got = p.forward(~dense());
  for (const double value : got.out) EXPECT_EQ(value, 0);
  for (const double value : got.lse) EXPECT_EQ(value, -kInfinity);
  const auto grad = p.backward(~dense());
  for (const auto* gradient : {&grad.dq, &grad.dk, &grad.dv}) {
    for (const double value : *gradient) EXPECT_EQ(value, 0);
  }
}

TEST(Reference, TheSinkJoinsTheSumAndHasNoValue) {
  Problem p;
  p.q_len = 1, p.k_len = 1, p.head_dim = 1, p.v_head_dim = 1;
  p.q = {0}, p.k = {5}, p.v = {8}, p.dout = {1};
  p.give_sink({float(std::log(3.0))});
  const auto got = p.forward(dense());  // exp(0) = 1 for the key, 3 for the sink
  EXPECT_NEAR(got.out[0], 2, 1e-6);
  EXPECT_NEAR(got.lse[0], std::log(4.0), 1e-6);
  EXPECT_NEAR(p.backward(dense()).dsink[0], -0.75 * 2, 1e-6);
  const auto empty = p.forward(~dense());
  EXPECT_EQ(empty.out[0], 0);
  EXPECT_EQ(empty.lse[0], double(p.sink[0]));
  EXPECT_EQ(p.backward(~dense()).dsink[0], 0);
}

TEST(Reference, SoftcapBendsTheScore) {
  Problem p;
  p.q_len = 1, p.k_len = 2, p.head_dim = 1, p.v_head_dim = 1;
  p.q = {3}, p.k = {0, 2}, p.v = {0, 1}, p.dout = {1};
  p.options.scale = 1, p.options.softcap = 2;
  const double score = 2 * std::tanh(6.0 / 2);
  EXPECT_NEAR(p.forward(dense()).lse[0], std::log(1 + std::exp(score)), 1e-12);
}

TEST(Reference, HeadsOfAGroupShareTheirKeys) {
  Problem p;
  p.heads = 6, p.kv_heads = 2, p.draw(3);
  Problem repeated = p;
  repeated.kv_heads = 6;
  repeated.k.clear(), repeated.v.clear();
  const size_t k_head = size_t(p.k_len * p.head_dim), v_head = size_t(p.k_len * p.v_head_dim);
  for (size_t head = 0; head < 6; ++head) {  // heads 0 1 2 take kv head 0, heads 3 4 5 kv head 1
    const auto* k = p.k.data() + head / 3 * k_head;
    const auto* v = p.v.data() + head / 3 * v_head;
    repeated.k.insert(repeated.k.end(), k, k + k_head);
    repeated.v.insert(repeated.v.end(), v, v + v_head);
  }
  EXPECT_EQ(p.forward(causal()).out, repeated.forward(causal()).out);
  EXPECT_EQ(p.backward(causal()).dq, repeated.backward(causal()).dq);
}

TEST(Reference, QueriesStandAtTheEndUnlessAnOffsetSaysOtherwise) {
  Problem p;
  p.q_len = 1, p.k_len = 4, p.draw(4);
  const auto lse = [&](std::optional<int64_t> offset) {
    return reference_forward(causal(), p.q_view(), p.k_view(), p.v_view(), p.options, offset)
        .lse[0];
  };
  EXPECT_EQ(lse({}), p.forward(dense()).lse[0]);
  EXPECT_EQ(lse(3), lse({}));
  EXPECT_EQ(lse(-1), -kInfinity);
  EXPECT_LT(lse(0), lse(1));
}

TEST(Reference, StridesAndHalfPrecisionAreReadWhereTheyLie) {
  Problem p;
  p.heads = 2, p.draw(5);
  p.kv_heads = 2, p.draw(5);
  // [batch, length, heads, head_dim] in memory, and one float of padding after every row.
  std::vector<float> q(size_t(3 * 2 * 3), 999.f);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t x = 0; x < 2; ++x) {
        const float value = float(p.q[size_t((h * 3 + i) * 2 + x)]);
        q[size_t((i * 2 + h) * 3 + x)] = value;
        p.q[size_t((h * 3 + i) * 2 + x)] = value;
      }
    }
  }
  const TensorView strided(q.data(), DType::f32, {1, 2, 3, 2}, {18, 3, 6, 1});
  const auto got = reference_forward(causal(), strided, p.k_view(), p.v_view()).out;
  const auto want = p.forward(causal()).out;
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-14);
}

TEST(Reference, WhatIsNotAttendedIsNeverRead) {
  Problem p;
  p.draw(6);
  const auto clean = p.forward(causal());
  const auto clean_grad = p.backward(causal());
  for (const double poison : {kNan, kInfinity, -kInfinity}) {
    Problem bad = p;
    bad.k[5] = bad.v[4] = poison;  // key 2: only query 2 sees it
    const auto got = bad.forward(causal());
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(got.out[i], clean.out[i]);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(got.lse[i], clean.lse[i]);
    const auto grad = bad.backward(causal());
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(grad.dq[i], clean_grad.dq[i]);
  }
}

TEST(Reference, AnAttendedNanShows) {
  Problem p;
  p.draw(7);
  p.v[4] = kNan;  // column 0 of key 2
  const auto value = p.forward(causal());
  EXPECT_TRUE(std::isnan(value.out[4]));
  EXPECT_FALSE(std::isnan(value.out[5]));
  EXPECT_FALSE(std::isnan(value.lse[2]));
  p.k[4] = kNan;
  const auto key = p.forward(causal());
  EXPECT_TRUE(std::isnan(key.lse[2]) && std::isnan(key.out[5]));
  EXPECT_FALSE(std::isnan(key.lse[1]));
}

TEST(Reference, LargeScoresNeitherOverflowNorVanish) {
  Problem p;
  p.q_len = 1, p.k_len = 3, p.head_dim = 1, p.v_head_dim = 1, p.options.scale = 1;
  for (const double size : {-120.0, 700.0, -3e38, 6e4}) {
    p.q = {1}, p.k = {size, size, size}, p.v = {1, 2, 6};
    const auto got = p.forward(dense());
    EXPECT_NEAR(got.out[0], 3, 1e-12);
    EXPECT_NEAR(got.lse[0], size + std::log(3.0), 1e-12 * std::abs(size));
  }
}

TEST(Reference, SampledRowsAreRowsOfTheWhole) {
  Problem p;
  p.batch = 2, p.heads = 2, p.q_len = 5, p.k_len = 7, p.draw(8);
  const auto all = p.forward(causal());
  const auto some = reference_forward_rows(causal(), p.q_view(), p.k_view(), p.v_view(), {4, 1});
  for (int64_t head = 0; head < 4; ++head) {
    EXPECT_EQ(some.lse[size_t(head * 2)], all.lse[size_t(head * 5 + 4)]);
    EXPECT_EQ(some.lse[size_t(head * 2 + 1)], all.lse[size_t(head * 5 + 1)]);
  }
}

TEST(Reference, GradientsOfSomeRowsAreThoseOfADoutThatIsZeroElsewhere) {
  Problem p;
  p.batch = 2, p.heads = 4, p.kv_heads = 2, p.q_len = 5, p.k_len = 7, p.draw(9);
  const auto some =
      reference_backward_rows(causal(), p.dout_view(), p.q_view(), p.k_view(), p.v_view(), {1, 3});
  const size_t columns = size_t(p.v_head_dim);
  for (size_t i = 0; i < p.dout.size(); ++i) {
    const size_t query = i / columns % 5;
    if (query != 1 && query != 3) p.dout[i] = 0;
  }
  const auto all = p.backward(causal());
  EXPECT_EQ(some.dk, all.dk);
  EXPECT_EQ(some.dv, all.dv);
  ASSERT_EQ(some.dq.size() * 5, all.dq.size() * 2);
  const size_t row = size_t(p.head_dim);
  for (size_t i = 0; i < row; ++i) EXPECT_EQ(some.dq[row + i], all.dq[3 * row + i]);
}

TEST(Reference, ARowHasItsKeysAndTheirWeights) {
  Problem p;
  p.heads = 2, p.q_len = 5, p.k_len = 7, p.draw(10);
  const auto all = p.forward(causal());
  const ReferenceRow row = reference_row(causal(), p.q_view(), p.k_view(), 0, 1, 3);
  EXPECT_EQ(row.keys, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_NEAR(row.lse, all.lse[5 + 3], 1e-12);
  for (size_t j = 0; j < row.keys.size(); ++j) {
    EXPECT_NEAR(row.weights[j], std::exp(row.scores[j] - row.lse), 1e-12);
  }
}

// A disturbance moves results by about its size, the same way every time, and none at all by none.
TEST(Reference, DisturbedInputsMoveResults) {
  Problem p;
  p.q_len = 5, p.k_len = 7, p.draw(11);
  const auto with = [&](double relative) {
    return reference_forward_rows(causal(), p.q_view(), p.k_view(), p.v_view(), {4}, {}, {},
                                  {relative, /*seed=*/1})
        .out;
  };
  EXPECT_EQ(with(1e-6), with(1e-6));
  EXPECT_NE(with(1e-6), with(0));
  for (size_t i = 0; i < with(0).size(); ++i) EXPECT_NEAR(with(1e-6)[i], with(0)[i], 1e-4);
}

TEST(Reference, ManyKeysAreCountedExactly) {
  // Beyond 65,536 keys sums are long double; q = 0 makes exp(lse) the number of keys.
  const int64_t k_len = 65536 + 3;
  const std::vector<double> zeros(size_t(k_len), 0.0), ones(size_t(k_len), 1.0);
  const TensorView q(zeros.data(), DType::f64, {1, 1, 1, 1}),
      k(ones.data(), DType::f64, {1, 1, k_len, 1});
  const auto got = reference_forward(dense(), q, k, k);
  EXPECT_EQ(std::llround(std::exp(got.lse[0])), k_len);
  EXPECT_NEAR(got.out[0], 1, 1e-15);
}

TEST(Reference, LengthsAndBatchOfZero) {
  Problem p;
  p.k_len = 0, p.draw(9);
  for (const double value : p.forward(dense()).lse) EXPECT_EQ(value, -kInfinity);
  p.q_len = 0, p.k_len = 3, p.draw(9);
  EXPECT_TRUE(p.forward(dense()).out.empty());
  for (const double value : p.backward(dense()).dv) EXPECT_EQ(value, 0);
  p.batch = 0, p.draw(9);
  EXPECT_TRUE(p.backward(dense()).dv.empty());
}

TEST(Reference, RefusesShapesThatDoNotFit) {
  Problem p;
  p.draw(10);
  Problem other = p;
  other.head_dim = 3, other.draw(10);
  EXPECT_THROW(reference_forward(dense(), p.q_view(), other.k_view(), p.v_view()), Error);
  EXPECT_THROW(reference_forward_rows(dense(), p.q_view(), p.k_view(), p.v_view(), {3}), Error);
  EXPECT_THROW(reference_backward(dense(), other.q_view(), p.q_view(), p.k_view(), p.v_view()),
               Error);
}

// Problems with every extra, for the laws below.
std::vector<std::pair<Problem, Pattern>> problems() {
  std::vector<std::pair<Problem, Pattern>> all;
  uint64_t seed = 100;
  for (const Pattern& pattern :
       {dense(), causal(), window(1, 1), causal() & window(2) & ~sinks(1), dilated(2), ~causal(),
        per_head({causal(), window(0), dense(), sinks(2)})}) {
    for (const int extra : {0, 1, 2}) {
      Problem p;
      p.batch = 2, p.heads = 4, p.kv_heads = 2, p.q_len = 4, p.k_len = 6, p.head_dim = 3,
      p.v_head_dim = 2;
      p.draw(++seed);
      if (extra >= 1) p.options.softcap = 1.5;
      if (extra >= 2) p.give_sink({0.5f, -1.f, 2.f, 0.f});
      all.push_back({p, pattern});
    }
  }
  return all;
}

TEST(ReferenceLaws, GradientsAgreeWithCentralDifferences) {
  constexpr double kStep = 1e-5;
  for (auto& [p, pattern] : problems()) {
    const ReferenceGradients grad = p.backward(pattern);
    const auto compare = [&, &problem = p, &what = pattern](
                             auto& values, const std::vector<double>& got, double step) {
      for (size_t i = 0; i < values.size(); ++i) {
        const auto before = values[i];
        using Value = std::remove_const_t<decltype(before)>;
        values[i] = Value(before + step);
        const double high_at = values[i], high = problem.loss(what);
        values[i] = Value(before - step);
        const double low_at = values[i], low = problem.loss(what);
        values[i] = before;
        const double slope = (high - low) / (high_at - low_at);
        EXPECT_NEAR(got[i], slope, 1e-7 * (1 + std::abs(slope))) << what.text() << " element " << i;
      }
    };
    compare(p.q, grad.dq, kStep);
    compare(p.k, grad.dk, kStep);
    compare(p.v, grad.dv, kStep);
    if (!p.sink.empty()) compare(p.sink, grad.dsink, 1e-3);
  }
}

TEST(ReferenceLaws, ConservationOfGradients) {
  for (const auto& [p, pattern] : problems()) {
    const ReferenceGradients grad = p.backward(pattern);
    if (p.sink.empty()) {
      // Weights of a live row sum to 1: what the values receive is what the live outputs sent.
      const auto lse = p.forward(pattern).lse;
      double sent = 0, received = 0;
      for (size_t row = 0; row < lse.size(); ++row) {
        for (size_t x = 0; x < 2; ++x) sent += lse[row] == -kInfinity ? 0 : p.dout[row * 2 + x];
      }
      for (const double value : grad.dv) received += value;
      EXPECT_NEAR(sent, received, 1e-12) << pattern.text();
    }
    // q and k enter only through their product.
    double through_q = 0, through_k = 0;
    for (size_t i = 0; i < p.q.size(); ++i) through_q += p.q[i] * grad.dq[i];
    for (size_t i = 0; i < p.k.size(); ++i) through_k += p.k[i] * grad.dk[i];
    EXPECT_NEAR(through_q, through_k, 1e-12) << pattern.text();
  }
}

TEST(ReferenceLaws, ValuesOfOneGiveOne) {
  for (auto& [p, pattern] : problems()) {
    if (!p.sink.empty()) continue;
    for (double& value : p.v) value = 1;
    const auto got = p.forward(pattern);
    for (size_t i = 0; i < got.out.size(); ++i) {
      EXPECT_NEAR(got.out[i], got.lse[i / 2] == -kInfinity ? 0 : 1, 1e-14);
    }
  }
}

}  // namespace
}  // namespace keyhole
