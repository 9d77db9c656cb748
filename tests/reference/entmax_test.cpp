// tests/reference/entmax_test.cpp
// The oracle for entmax and top_k: numbers worked out elsewhere, laws, what is never read, and its
// gradients, that of alpha too, against central differences of its own forward pass.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"
#include "reference/attention.h"

namespace keyhole {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  int64_t heads = 1, kv_heads = 1, q_len = 4, k_len = 4, head_dim = 2, v_head_dim = 2;
  std::vector<double> q, k, v, dout;
  std::vector<float> sink;
  AttentionOptions options;

  void draw(uint64_t seed) {
    Random random(seed);
    const auto fill = [&](std::vector<double>& values, int64_t count) {
      values.resize(size_t(count));
      for (double& value : values) value = random.normal();
    };
    fill(q, heads * q_len * head_dim), fill(k, kv_heads * k_len * head_dim);
    fill(v, kv_heads * k_len * v_head_dim), fill(dout, heads * q_len * v_head_dim);
  }
  AttentionOptions all_options() const {
    AttentionOptions all = options;
    if (!sink.empty()) all.sink = TensorView(sink.data(), DType::f32, {heads});
    return all;
  }
  TensorView view(const std::vector<double>& data, int64_t h, int64_t len, int64_t cols) const {
    return {data.data(), DType::f64, {1, h, len, cols}};
  }
  ReferenceOutput forward(const Pattern& pattern) const {
    return reference_forward(pattern, view(q, heads, q_len, head_dim),
                             view(k, kv_heads, k_len, head_dim),
                             view(v, kv_heads, k_len, v_head_dim), all_options());
  }
  ReferenceGradients backward(const Pattern& pattern) const {
    return reference_backward(pattern, view(dout, heads, q_len, v_head_dim),
                              view(q, heads, q_len, head_dim), view(k, kv_heads, k_len, head_dim),
                              view(v, kv_heads, k_len, v_head_dim), all_options());
  }
  double loss(const Pattern& pattern) const {
    const ReferenceOutput output = forward(pattern);
    double sum = 0;
    for (size_t i = 0; i < output.out.size(); ++i) sum += output.out[i] * dout[i];
    return sum;
  }
};

Problem by_hand(const Normalizer& normalizer) {
  Problem p;
  p.q = {1, 0, 0, 1, 1, 1, 2, -1}, p.k = {1, 0, 0, 1, 1, 1, -1, 2};
  p.v = {1, 0, 0, 1, 2, 2, -1, 3}, p.dout = {1, 0, 0, 1, 1, -1, 2, 1};
  p.options.scale = 1;
  p.options.normalizer = normalizer;
  return p;
}

TEST(ReferenceEntmax, AnExampleFromElsewhere) {
  const Problem p = by_hand(entmax(1.5));
  const auto out = p.forward(causal()).out;
  EXPECT_NEAR(out[2], .169281086117, 1e-12);
  EXPECT_NEAR(out[3], .830718913883, 1e-12);
  const auto grad = p.backward(causal());
  EXPECT_NEAR(grad.dq[6], 0, 1e-11);
  EXPECT_NEAR(grad.dq[7], 1.13389341903, 1e-11);
  EXPECT_NEAR(grad.dk[0], -1.90740722803, 1e-11);
  EXPECT_NEAR(grad.dk[1], 1.2107996743, 1e-10);
  EXPECT_NEAR(grad.dalpha, -.745384717173, 1e-11);
}

TEST(ReferenceEntmax, TheSameWithTopK) {
  const Problem p = by_hand(entmax(1.5, 2));
  const auto out = p.forward(causal()).out;
  EXPECT_NEAR(out[4], 1.83071891388, 1e-11);
  EXPECT_NEAR(out[5], 1.66143782777, 1e-11);
  const auto grad = p.backward(causal());
  EXPECT_NEAR(grad.dk[0], -1.9843134833, 1e-10);
  EXPECT_NEAR(grad.dk[1], 1.13389341903, 1e-11);
}

TEST(ReferenceEntmax, GradientsAreDerivatives) {
  constexpr double kStep = 1e-5;
  Random random(3);
  for (const double alpha : {1., 1.1, 1.25, 1.5, 1.75, 2.}) {
    for (const int64_t top : {0, 3}) {
      for (const double softcap : {0., 2.5}) {
        for (const bool has_sink : {false, true}) {
          Problem p;
          p.heads = 4, p.kv_heads = 2, p.q_len = 6, p.k_len = 7, p.head_dim = 5, p.v_head_dim = 3;
          p.draw(uint64_t(100 * alpha) + uint64_t(top));
          p.options.normalizer = entmax(alpha, top);
          if (p.options.normalizer.is_plain_softmax()) continue;
          p.options.softcap = softcap;
          if (has_sink) p.sink = {0.3f, -0.2f, 0.9f, 0};
          const ReferenceGradients grad = p.backward(causal());
          const auto compare = [&](auto& values, const std::vector<double>& gradient, double step,
                                   const char* name) {
            for (int i = 0; i < 8; ++i) {
              const size_t at = size_t(random.below(int64_t(values.size())));
              const auto before = values[at];
              using Value = std::decay_t<decltype(before)>;
              values[at] = Value(before + step);
              const double high_at = values[at], high = p.loss(causal());
              values[at] = Value(before - step);
              const double low_at = values[at], low = p.loss(causal());
              values[at] = before;
              EXPECT_NEAR(gradient[at], (high - low) / (high_at - low_at), 1e-6)
                  << name << " " << to_string(p.options.normalizer) << " softcap " << softcap;
            }
          };
          compare(p.q, grad.dq, kStep, "dq");
          compare(p.k, grad.dk, kStep, "dk");
          compare(p.v, grad.dv, kStep, "dv");
          if (has_sink) compare(p.sink, grad.dsink, 1e-4, "dsink");
          if (alpha == 1 || alpha == 2) continue;
          Problem up = p, down = p;
          up.options.normalizer.alpha += kStep, down.options.normalizer.alpha -= kStep;
          EXPECT_NEAR(grad.dalpha, (up.loss(causal()) - down.loss(causal())) / (2 * kStep), 1e-6)
              << to_string(p.options.normalizer);
        }
      }
    }
  }
}

TEST(ReferenceEntmax, TopKTakesTheSmallerKeyOfEqualScores) {
  Problem p;
  p.q_len = 1, p.k_len = 5, p.head_dim = 1, p.v_head_dim = 1;
  p.q = {1}, p.k = {0, 2, 1, 2, 2}, p.v = {1, 10, 100, 1000, 10000}, p.dout = {1};
  p.options.scale = 1;
  p.options.normalizer = softmax(2);
  EXPECT_NEAR(p.forward(dense()).out[0], (10 + 1000) / 2., 1e-12);
  EXPECT_NEAR(p.forward(dense()).lse[0], 2 + std::log(2.), 1e-14);
  p.options.normalizer = entmax(1.5, 1);
  EXPECT_EQ(p.forward(dense()).out[0], 10);
  // Masked keys do not count, and the sink does not either.
  p.options.normalizer = softmax(4);
  p.sink = {2};
  EXPECT_NEAR(p.forward(sinks(3)).out[0],
              (1 + 10 * std::exp(2.) + 100 * std::exp(1.)) / (1 + 2 * std::exp(2.) + std::exp(1.)),
              1e-12);
}

TEST(ReferenceEntmax, EnoughKeysMakeTopKAllOfThem) {
  Problem p;
  p.q_len = 9, p.k_len = 30, p.head_dim = 6;
  p.draw(5);
  for (const double alpha : {1., 1.25, 1.5, 2.}) {
    p.options.normalizer = entmax(alpha);
    const auto all = p.forward(causal());
    p.options.normalizer = entmax(alpha, 30);
    const auto top = p.forward(causal());
    for (size_t i = 0; i < all.out.size(); ++i) EXPECT_NEAR(all.out[i], top.out[i], 1e-13);
    for (size_t i = 0; i < all.lse.size(); ++i) EXPECT_NEAR(all.lse[i], top.lse[i], 1e-13);
  }
}

TEST(ReferenceEntmax, ReadsOnlyWhatHasWeight) {
  for (const Normalizer& normalizer : {entmax(2), entmax(1.1, 1), softmax(1)}) {
    Problem p;
    p.q_len = 1, p.k_len = 3, p.head_dim = 1, p.v_head_dim = 1;
    p.q = {1}, p.k = {0, 1, -1}, p.v = {kNan, 5, kInfinity}, p.dout = {3};
    p.options.scale = 1;
    p.options.normalizer = normalizer;
    EXPECT_EQ(p.forward(dense()).out[0], 5) << to_string(normalizer);
    const auto grad = p.backward(dense());
    EXPECT_EQ(grad.dv, (std::vector<double>{0, 3, 0})) << to_string(normalizer);
    EXPECT_EQ(grad.dq[0], 0);
  }
}

TEST(ReferenceEntmax, NanAndInfinitiesOfAttendedKeys) {
  for (const Normalizer& normalizer : {entmax(1.5), entmax(2, 2), softmax(2)}) {
    for (const double bad : {kNan, kInfinity}) {
      Problem p = by_hand(normalizer);
      p.k[6] = bad, p.k[7] = 0;  // key 3: seen by query 3 alone; its q[0] is positive
      const auto output = p.forward(causal());
      for (size_t i = 0; i < 8; ++i) EXPECT_EQ(std::isnan(output.out[i]), i >= 6) << bad;
      for (size_t i = 0; i < 4; ++i) EXPECT_EQ(std::isnan(output.lse[i]), i == 3) << bad;
    }
    Problem p = by_hand(normalizer);
    p.k[6] = -kInfinity, p.k[7] = 0;
    for (const double value : p.forward(causal()).out) EXPECT_TRUE(std::isfinite(value));
  }
}

TEST(ReferenceEntmax, AnEmptyRow) {
  for (const Normalizer& normalizer : {entmax(1.5), entmax(1.25, 2), softmax(2)}) {
    const Problem p = by_hand(normalizer);
    const auto output = p.forward(~causal());  // the last query sees nothing
    EXPECT_EQ(output.lse[3], -kInfinity);
    EXPECT_EQ(output.out[6], 0);
    EXPECT_EQ(p.backward(~causal()).dq[6], 0);
  }
}

}  // namespace
}  // namespace keyhole
