// tests/api/entmax_test.cpp
// Entmax and top_k through the public functions: what the support holds, that backward needs it
// not, which bits are equal, what is never read, and the accuracy that docs/numerics.md promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "keyhole/attention.h"
#include "reference/attention.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Problem {
  int64_t heads = 2, kv_heads = 1, q_len = 60, k_len = 90, head_dim = 16, v_head_dim = 8;
  std::vector<float> q, k, v, dout, out, lse, dq, dk, dv;
  std::vector<int32_t> support;
  AttentionOptions options;

  void draw(uint64_t seed, double q_size = 1) {
    Random random(seed);
    const auto fill = [&](std::vector<float>& values, int64_t count, double size) {
      values.resize(size_t(count));
      for (float& value : values) value = float(size * random.normal());
    };
    fill(q, heads * q_len * head_dim, q_size), fill(k, kv_heads * k_len * head_dim, 1);
    fill(v, kv_heads * k_len * v_head_dim, 1), fill(dout, heads * q_len * v_head_dim, 1);
    out.assign(dout.size(), -7), lse.assign(size_t(heads * q_len), -7);
    dq.assign(q.size(), -7), dk.assign(k.size(), -7), dv.assign(v.size(), -7);
    support.assign(size_t(heads * q_len * kSupportKeys), -7);
  }
  static TensorView view(const std::vector<float>& data, int64_t h, int64_t len, int64_t cols) {
    return {data.data(), DType::f32, {1, h, len, cols}};
  }
  TensorView q_view() const { return view(q, heads, q_len, head_dim); }
  TensorView k_view() const { return view(k, kv_heads, k_len, head_dim); }
  TensorView v_view() const { return view(v, kv_heads, k_len, v_head_dim); }
  TensorView dout_view() const { return view(dout, heads, q_len, v_head_dim); }
  TensorView lse_view() const { return {lse.data(), DType::f32, {1, heads, q_len}}; }

  void with_support() { options.support = IndexView(support.data(), {1, heads, q_len, 64}); }
  void forward(const Lists& lists) {
    attention_forward(q_view(), k_view(), v_view(), lists, view(out, heads, q_len, v_head_dim),
                      lse_view(), options);
  }
  void backward(const Lists& lists) {
    attention_backward(dout_view(), q_view(), k_view(), v_view(),
                       view(out, heads, q_len, v_head_dim), lse_view(), lists,
                       {view(dq, heads, q_len, head_dim),
                        view(dk, kv_heads, k_len, head_dim),
                        view(dv, kv_heads, k_len, v_head_dim),
                        {}},
                       options);
  }
  Plan plan_of(const Pattern& pattern) const {
    return plan(pattern, Shape{1, heads, q_len, k_len, {}});
  }
  ReferenceOutput want(const Pattern& pattern) const {
    AttentionOptions plain = options;
    plain.support = {};
    return reference_forward(pattern, q_view(), k_view(), v_view(), plain);
  }
  ReferenceGradients want_gradients(const Pattern& pattern) const {
    AttentionOptions plain = options;
    plain.support = {};
    return reference_backward(pattern, dout_view(), q_view(), k_view(), v_view(), plain);
  }
};

double worst(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error = std::max(error, std::abs(double(got[i]) - want[i]));
    if (std::isnan(got[i]) != std::isnan(want[i])) return kInfinity;
  }
  return error;
}
double largest(const std::vector<double>& values) {
  double size = 0;
  for (const double value : values) size = std::max(size, std::abs(value));
  return size;
}

const Normalizer kNormalizers[] = {entmax(1.5),    entmax(2),  entmax(1.25),     entmax(1.7),
                                   entmax(1.5, 8), softmax(8), entmax(1.05, 70), entmax(1.01)};

TEST(EntmaxAttention, TheSupportIsWhatHasWeight) {
  for (const Normalizer& normalizer : kNormalizers) {
    Problem p;
    p.draw(3);
    p.options.normalizer = normalizer;
    p.with_support();
    p.forward(p.plan_of(causal()));
    // With unit values the outputs are the weights: key x of a run of v_head_dim keys.
    Problem unit = p;
    unit.options.support = {};
    // `want`: so much that fp32 cannot lose it; `may`: any.
    std::vector<std::vector<int32_t>> want(size_t(p.heads * p.q_len)), may(want.size());
    for (int64_t first = 0; first < p.k_len; first += p.v_head_dim) {
      std::fill(unit.v.begin(), unit.v.end(), 0.f);
      for (int64_t x = 0; x < p.v_head_dim && first + x < p.k_len; ++x) {
        unit.v[size_t((first + x) * p.v_head_dim + x)] = 1;
      }
      const auto weights = unit.want(causal()).out;
      for (size_t row = 0; row < want.size(); ++row) {
        for (int64_t x = 0; x < p.v_head_dim; ++x) {
          const double weight = weights[row * size_t(p.v_head_dim) + size_t(x)];
          if (weight > 1e-7) want[row].push_back(int32_t(first + x));
          if (weight > 0) may[row].push_back(int32_t(first + x));
        }
      }
    }
    for (size_t row = 0; row < want.size(); ++row) {
      const int32_t* got = p.support.data() + row * kSupportKeys;
      if (got[0] == kLongSupport) {
        EXPECT_GT(may[row].size(), 64u) << to_string(normalizer);
        continue;
      }
      const std::vector<int32_t> keys(got, std::find(got, got + kSupportKeys, -1));
      EXPECT_TRUE(
          std::all_of(got + keys.size(), got + kSupportKeys, [](int k) { return k == -1; }));
      EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
      EXPECT_TRUE(std::includes(keys.begin(), keys.end(), want[row].begin(), want[row].end()))
          << to_string(normalizer) << " row " << row;
      EXPECT_TRUE(std::includes(may[row].begin(), may[row].end(), keys.begin(), keys.end()))
          << to_string(normalizer) << " row " << row;
    }
  }
}

TEST(EntmaxAttention, AsAccurateAsPromised) {
  for (const Normalizer& normalizer : kNormalizers) {
    for (const bool has_support : {false, true}) {
      Problem p;
      p.q_len = p.k_len = 300, p.head_dim = p.v_head_dim = 64;
      p.draw(7);
      p.options.normalizer = normalizer;
      if (has_support) p.with_support();
      const Plan made = p.plan_of(causal());
      p.forward(made);
      p.backward(made);
      const auto want = p.want(causal());
      EXPECT_LE(worst(p.out, want.out), 1e-5) << to_string(normalizer);
      for (size_t i = 0; i < p.lse.size(); ++i) {
        EXPECT_NEAR(p.lse[i], want.lse[i], 1e-6 + 2 * 0x1p-23 * std::abs(want.lse[i]))
            << to_string(normalizer);
      }
      const auto grad = p.want_gradients(causal());
      EXPECT_LE(worst(p.dq, grad.dq), 5e-5 * largest(grad.dq)) << to_string(normalizer);
      EXPECT_LE(worst(p.dk, grad.dk), 5e-5 * largest(grad.dk)) << to_string(normalizer);
      EXPECT_LE(worst(p.dv, grad.dv), 5e-5 * largest(grad.dv)) << to_string(normalizer);
    }
  }
}

TEST(EntmaxAttention, WeightsAddUpToOne) {
  for (const Normalizer& normalizer : kNormalizers) {
    for (const double size : {0., 1., 30.}) {  // q = 0: every key has the same score
      Problem p;
      p.heads = p.kv_heads = 1, p.q_len = 3, p.k_len = 9000;  // more keys than a list of a block
      p.draw(11, size);
      std::fill(p.v.begin(), p.v.end(), 1.f);
      p.options.normalizer = normalizer;
      p.forward(p.plan_of(dense()));
      for (const float out : p.out) EXPECT_NEAR(out, 1, 1e-6) << to_string(normalizer);
    }
  }
}

TEST(EntmaxAttention, RowsWhoseKeysAllHaveWeight) {
  for (const double alpha : {1.25, 1.5, 2.}) {
    Problem p;
    p.heads = p.kv_heads = 1, p.q_len = 9, p.k_len = 9000;
    p.draw(13, 0);
    p.options.normalizer = entmax(alpha);
    p.with_support();
    const Plan made = p.plan_of(dense());
    p.forward(made);
    EXPECT_EQ(p.support[0], kLongSupport);
    EXPECT_LE(worst(p.out, p.want(dense()).out), 1e-6);
    p.backward(made);
    const auto grad = p.want_gradients(dense());
    EXPECT_LE(worst(p.dq, grad.dq), 5e-5 * largest(grad.dq)) << alpha;
    EXPECT_LE(worst(p.dv, grad.dv), 5e-5 * largest(grad.dv)) << alpha;
  }
}

TEST(EntmaxAttention, TheSameBitsForAnyNumberOfThreads) {
  for (const Normalizer& normalizer : kNormalizers) {
    for (const bool has_support : {false, true}) {
      for (const Pattern& pattern : {causal(), strided(7), random(1, 20, 3)}) {
        Problem p;
        p.heads = 4, p.kv_heads = 2, p.q_len = p.k_len = 200;
        p.draw(17);
        p.options.normalizer = normalizer;
        if (has_support) p.with_support();
        const Plan made = p.plan_of(pattern);
        p.options.threads = 1;
        p.forward(made), p.backward(made);
        const Problem first = p;
        for (const int threads : {2, 3}) {
          p.options.threads = threads;
          p.forward(made), p.backward(made);
          EXPECT_EQ(p.out, first.out) << to_string(normalizer);
          EXPECT_EQ(p.lse, first.lse) << to_string(normalizer);
          EXPECT_EQ(p.dq, first.dq) << to_string(normalizer);
          EXPECT_EQ(p.dk, first.dk) << to_string(normalizer);
          EXPECT_EQ(p.dv, first.dv) << to_string(normalizer);
        }
      }
    }
  }
}

TEST(EntmaxAttention, AlphaOneAndATopKOfAllKeysAreSoftmaxBitForBit) {
  Problem p;
  p.draw(19);
  const Plan made = p.plan_of(causal());
  p.forward(made), p.backward(made);
  const Problem softmax_ran = p;
  for (const Normalizer& same : {entmax(1), softmax(p.k_len), softmax(1000)}) {
    p.options.normalizer = same;
    p.forward(made), p.backward(made);
    EXPECT_EQ(p.out, softmax_ran.out);
    EXPECT_EQ(p.lse, softmax_ran.lse);
    EXPECT_EQ(p.dq, softmax_ran.dq);
    EXPECT_EQ(p.dk, softmax_ran.dk);
  }
  EXPECT_EQ(kernel_for_forward(p.q_view(), p.v_view(), made, p.options).find("cpu.forward.f32"),
            0u);
  p.options.normalizer = entmax(1.5);
  EXPECT_EQ(
      kernel_for_forward(p.q_view(), p.v_view(), made, p.options).find("cpu.entmax_forward.f32"),
      0u);
}

TEST(EntmaxAttention, TopKAboveTheSupportIsEntmax) {
  Problem p;
  p.draw(23);
  p.options.normalizer = entmax(2);
  p.forward(p.plan_of(causal()));
  const Problem all = p;
  p.options.normalizer = entmax(2, 60);
  p.forward(p.plan_of(causal()));
  EXPECT_EQ(p.out, all.out);
  EXPECT_EQ(p.lse, all.lse);
}

TEST(EntmaxAttention, TopKTakesTheSmallerKeyOfEqualScores) {
  for (const int64_t k_len : {40, 700, 9000}) {  // one strip, several, more than a list
    for (const double alpha : {1., 1.5, 2.}) {
      Problem p;
      p.heads = p.kv_heads = 1, p.q_len = 70, p.k_len = k_len, p.head_dim = 1, p.v_head_dim = 1;
      p.draw(1);
      std::fill(p.q.begin(), p.q.end(), 1.f);
      for (size_t j = 0; j < p.k.size(); ++j)
        p.k[j] = float(j * 7 % 4);  // whole scores, many equal
      p.options.scale = 0.25;
      p.options.normalizer = entmax(alpha, 5);
      p.with_support();
      p.forward(p.plan_of(dense()));
      std::vector<int32_t> want;
      for (int32_t key = 0; want.size() < 5; ++key) {
        if (p.k[size_t(key)] == 3) want.push_back(key);
      }
      for (int64_t row = 0; row < p.q_len; ++row) {
        const int32_t* got = p.support.data() + row * kSupportKeys;
        EXPECT_EQ(std::vector<int32_t>(got, got + 5), want) << alpha << " " << k_len;
        EXPECT_EQ(got[5], -1);
      }
    }
  }
}

TEST(EntmaxAttention, ALaterKeyChangesNoEarlierRow) {
  for (const Normalizer& normalizer : kNormalizers) {
    Problem p;
    p.q_len = p.k_len = 150;
    p.draw(29);
    p.options.normalizer = normalizer;
    const Plan made = p.plan_of(causal());
    p.forward(made);
    const Problem before = p;
    for (int64_t x = 0; x < p.head_dim; ++x) p.k[size_t(100 * p.head_dim + x)] = 50;
    p.v[size_t(100 * p.v_head_dim)] = kNan;
    p.forward(made);
    for (int64_t h = 0; h < p.heads; ++h) {
      for (int64_t i = 0; i < 100; ++i) {
        const size_t row = size_t(h * p.q_len + i), columns = size_t(p.v_head_dim);
        EXPECT_EQ(p.lse[row], before.lse[row]);
        for (size_t x = 0; x < columns; ++x) {
          EXPECT_EQ(p.out[row * columns + x], before.out[row * columns + x]);
        }
      }
    }
  }
}

TEST(EntmaxAttention, ValuesOutsideTheSupportAreNeverRead) {
  for (const bool has_support : {false, true}) {
    Problem p;
    p.heads = p.kv_heads = 1;
    p.draw(31, 4);
    p.options.normalizer = entmax(2);
    if (has_support) p.with_support();
    const Plan made = p.plan_of(causal());
    p.forward(made), p.backward(made);
    const Problem clean = p;
    int64_t spoilt = 0;
    for (int64_t key = 0; key < p.k_len; ++key) {
      bool has_weight = false;
      for (int64_t x = 0; x < p.v_head_dim; ++x) {
        has_weight = has_weight || clean.dv[size_t(key * p.v_head_dim + x)] != 0;
      }
      if (has_weight) continue;
      p.v[size_t(key * p.v_head_dim)] = spoilt++ % 2 == 0 ? kNan : kInfinity;
    }
    ASSERT_GT(spoilt, 10);
    p.forward(made), p.backward(made);
    EXPECT_EQ(p.out, clean.out);
    EXPECT_EQ(p.dq, clean.dq);
    EXPECT_EQ(p.dk, clean.dk);
    EXPECT_EQ(p.dv, clean.dv);
  }
}

TEST(EntmaxAttention, AnAttendedNanOrInfinityMakesItsRowsNan) {
  for (const Normalizer& normalizer : kNormalizers) {
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      Problem p;
      p.heads = p.kv_heads = 1, p.q_len = p.k_len = 90;
      p.draw(37);
      p.options.normalizer = normalizer;
      p.with_support();
      // Key 40 scores bad, 0 * anything else; every query sees it from 40 on.
      for (int64_t x = 0; x < p.head_dim; ++x) p.k[size_t(40 * p.head_dim + x)] = x == 0 ? bad : 0;
      for (int64_t i = 0; i < p.q_len; ++i) p.q[size_t(i * p.head_dim)] = 1;
      const Plan made = p.plan_of(causal());
      p.forward(made), p.backward(made);
      const bool is_nan = bad != -kInfinity;
      for (int64_t i = 0; i < p.q_len; ++i) {
        EXPECT_EQ(std::isnan(p.lse[size_t(i)]), is_nan && i >= 40) << to_string(normalizer);
        EXPECT_EQ(std::isnan(p.out[size_t(i * p.v_head_dim)]), is_nan && i >= 40);
        EXPECT_EQ(std::isnan(p.dq[size_t(i * p.head_dim)]), is_nan && i >= 40);
      }
      EXPECT_LE(worst(p.out, p.want(causal()).out), 1e-5) << to_string(normalizer);
    }
  }
}

TEST(EntmaxAttention, AKeyThatIsListedTwiceCountsTwice) {
  for (const Normalizer& normalizer : {entmax(1.5), softmax(3), entmax(2, 2), entmax(1.25)}) {
    Problem p;
    p.heads = p.kv_heads = 1, p.q_len = 20, p.k_len = 6;
    p.draw(41);
    p.options.normalizer = normalizer;
    const int32_t listed[] = {5, 1, -1, 3, 1, 0, 5, 5};
    std::vector<int32_t> indices;
    for (int64_t i = 0; i < p.q_len; ++i) indices.insert(indices.end(), listed, listed + 8);
    const IndexView lists(indices.data(), {1, 1, p.q_len, 8});
    p.with_support();
    p.forward(lists), p.backward(lists);
    // The same with a copy of each key for each time that it is listed, in the order of the keys.
    Problem copies = p;
    const int32_t order[] = {0, 1, 1, 3, 5, 5, 5};
    copies.k_len = 7;
    copies.k.clear(), copies.v.clear();
    for (const int32_t key : order) {
      copies.k.insert(copies.k.end(), p.k.begin() + key * p.head_dim,
                      p.k.begin() + (key + 1) * p.head_dim);
      copies.v.insert(copies.v.end(), p.v.begin() + key * p.v_head_dim,
                      p.v.begin() + (key + 1) * p.v_head_dim);
    }
    EXPECT_LE(worst(p.out, copies.want(dense()).out), 2e-6) << to_string(normalizer);
    const auto grad = copies.want_gradients(dense());
    EXPECT_LE(worst(p.dq, grad.dq), 2e-5) << to_string(normalizer);
    std::vector<double> dv(p.dv.size());
    for (size_t j = 0; j < 7; ++j) {
      for (size_t x = 0; x < size_t(p.v_head_dim); ++x) {
        dv[size_t(order[j]) * size_t(p.v_head_dim) + x] += grad.dv[j * size_t(p.v_head_dim) + x];
      }
    }
    EXPECT_LE(worst(p.dv, dv), 2e-5) << to_string(normalizer);
  }
}

TEST(EntmaxAttention, ATopKOfManyKeys) {
  Problem p;
  p.heads = p.kv_heads = 1, p.q_len = 18, p.k_len = 12000;
  p.draw(43);
  for (const Normalizer& normalizer : {softmax(9000), softmax(3000), entmax(1.1, 9000)}) {
    p.options.normalizer = normalizer;
    const Plan made = p.plan_of(dense());
    p.forward(made), p.backward(made);
    EXPECT_LE(worst(p.out, p.want(dense()).out), 1e-5) << to_string(normalizer);
    const auto grad = p.want_gradients(dense());
    EXPECT_LE(worst(p.dq, grad.dq), 1e-4 * largest(grad.dq)) << to_string(normalizer);
  }
}

TEST(EntmaxAttention, ASupportOfAnotherCallIsRefused) {
  Problem p;
  p.draw(47);
  p.options.normalizer = entmax(1.5);
  p.with_support();
  const Plan made = p.plan_of(causal());
  p.forward(made);
  p.support[64] = 90;
  EXPECT_EQ(message_of([&] { p.backward(made); }),
            "attention: support has 90 for batch 0, head 0, query 1; accepted are the keys 0 to 89 "
            "and -1, as the forward pass writes them");
}

TEST(EntmaxAttention, TopKOfListsThatNameAKeyTwiceInAnyOrder) {
  Problem p;
  p.heads = 1, p.q_len = 1, p.k_len = 6, p.v_head_dim = 6;
  p.draw(4);
  std::fill(p.q.begin(), p.q.end(), 0.f);  // all scores are equal
  std::fill(p.v.begin(), p.v.end(), 0.f);
  for (size_t key = 0; key < 6; ++key) p.v[key * 6 + key] = 1;
  p.options.normalizer = softmax(3);
  p.with_support();
  const std::vector<int32_t> entries = {5, 5, 4, 5, 3};
  p.forward(IndexView(entries.data(), {1, 1, 1, 5}));
  const std::vector<float> want = {0, 0, 0, 1.f / 3, 1.f / 3, 1.f / 3};
  for (size_t key = 0; key < 6; ++key) EXPECT_NEAR(p.out[key], want[key], 1e-6) << key;
  EXPECT_EQ(p.support[0], 3);
  EXPECT_EQ(p.support[1], 4);
  EXPECT_EQ(p.support[2], 5);
  EXPECT_EQ(p.support[3], -1);
}

}  // namespace
}  // namespace keyhole::test
