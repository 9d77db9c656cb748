// tests/api/contract_test.cpp
// The contract of docs/numerics.md, line by line, through the public functions alone. Each test is
// the shortest program that would notice if its line stopped being true.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "base/random.h"
#include "keyhole/attention.h"
#include "keyhole/error.h"

namespace keyhole {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One fp32 attention call with contiguous memory of its own.
struct Attention {
  Shape shape;
  int64_t kv_heads, head_dim, v_head_dim;
  std::vector<float> q, k, v, dout, out, lse, dq, dk, dv;
  AttentionOptions options;

  explicit Attention(const Shape& s, int64_t kv = 1, int64_t d = 4, int64_t vd = 4)
      : shape(s), kv_heads(kv), head_dim(d), v_head_dim(vd) {
    Random random(9);
    const auto fill = [&](std::vector<float>& values, int64_t heads, int64_t rows,
                          int64_t columns) {
      values.resize(size_t(shape.batch * heads * rows * columns));
      for (float& value : values) value = float(random.quick_normal());
    };
    fill(q, s.heads, s.q_len, d), fill(k, kv, s.k_len, d), fill(v, kv, s.k_len, vd);
    fill(dout, s.heads, s.q_len, vd), fill(out, s.heads, s.q_len, vd),
        fill(lse, s.heads, s.q_len, 1);
    fill(dq, s.heads, s.q_len, d), fill(dk, kv, s.k_len, d), fill(dv, kv, s.k_len, vd);
  }
  TensorView on_q(const std::vector<float>& data, int64_t columns) const {
    return {data.data(), DType::f32, {shape.batch, shape.heads, shape.q_len, columns}};
  }
  TensorView on_k(const std::vector<float>& data, int64_t columns) const {
    return {data.data(), DType::f32, {shape.batch, kv_heads, shape.k_len, columns}};
  }
  TensorView lse_view() const {
    return {lse.data(), DType::f32, {shape.batch, shape.heads, shape.q_len}};
  }
  Attention& forward(const Plan& plan) {
    attention_forward(on_q(q, head_dim), on_k(k, head_dim), on_k(v, v_head_dim), plan,
                      on_q(out, v_head_dim), lse_view(), options);
    return *this;
  }
  Attention& forward(const Pattern& pattern) { return forward(plan(pattern, shape)); }
  Attention& both(const Pattern& pattern) {
    const Plan made = plan(pattern, shape);
    forward(made);
    attention_backward(on_q(dout, v_head_dim), on_q(q, head_dim), on_k(k, head_dim),
                       on_k(v, v_head_dim), on_q(out, v_head_dim), lse_view(), made,
                       {on_q(dq, head_dim), on_k(dk, head_dim), on_k(dv, v_head_dim), {}}, options);
    return *this;
  }
  // With q = 0, the number of keys a row sees.
  int64_t keys_seen(int64_t row) const { return std::llround(std::exp(double(lse[size_t(row)]))); }
};

TEST(Contract, MemoryOrderIsStridesAndNothingElse) {
  Attention a({2, 3, 5, 5, {}}, 3);
  a.forward(causal());
  // The same numbers as [batch, length, heads, head_dim].
  const auto turned = [](const std::vector<float>& from) {
    std::vector<float> to(from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      const size_t x = i % 4, row = i / 4 % 5, head = i / 20 % 3, batch = i / 60;
      to[((batch * 5 + row) * 3 + head) * 4 + x] = from[i];
    }
    return to;
  };
  const auto view = [](const std::vector<float>& data) {
    return TensorView(data.data(), DType::f32, {2, 3, 5, 4}, {60, 4, 12, 1});
  };
  const auto q = turned(a.q), k = turned(a.k), v = turned(a.v);
  std::vector<float> out(a.out.size());
  attention_forward(view(q), view(k), view(v), plan(causal(), a.shape), view(out));
  EXPECT_EQ(out, turned(a.out));
}

TEST(Contract, HeadsOfAGroupAreNeighbours) {  // head h reads kv head h / group, not h % kv_heads
  Attention a({1, 4, 1, 3, {}}, 2);
  std::fill(a.v.begin(), a.v.begin() + 12, 1.f), std::fill(a.v.begin() + 12, a.v.end(), 2.f);
  a.forward(dense());
  for (size_t head = 0; head < 4; ++head) EXPECT_NEAR(a.out[head * 4], head < 2 ? 1 : 2, 1e-6);
}

TEST(Contract, ValuesMayHaveAnotherHeadDim) {
  for (const int64_t vd : {1, 7, 64}) {
    Attention a({1, 1, 3, 3, {}}, 1, 5, vd);
    std::fill(a.v.begin(), a.v.end(), 3.f);
    a.forward(causal());
    for (const float value : a.out) EXPECT_NEAR(value, 3, 1e-5);
  }
}

TEST(Contract, QueriesStandAtTheEndOfTheKeysUnlessTheOffsetSaysOtherwise) {
  for (const auto& [offset, want] :
       {std::pair<std::optional<int64_t>, std::vector<int64_t>>{{}, {4, 5}},
        {0, {1, 2}},
        {-1, {0, 1}},
        {9, {5, 5}}}) {
    Attention a({1, 1, 2, 5, offset});
    std::fill(a.q.begin(), a.q.end(), 0.f);
    a.forward(causal());
    for (int64_t row = 0; row < 2; ++row) EXPECT_EQ(a.keys_seen(row), want[size_t(row)]);
  }
}

TEST(Contract, ExplicitPositionsOverrideTheOrder) {
  Attention a({1, 1, 2, 3, {}});
  std::fill(a.q.begin(), a.q.end(), 0.f);
  a.forward(at({7, 1}, {5, 0, 7}, causal()));
  EXPECT_EQ(a.keys_seen(0), 3);
  EXPECT_EQ(a.keys_seen(1), 1);
}

TEST(Contract, BothEndsOfAWindowAreIncluded) {
  Attention a({1, 1, 9, 9, {}});
  std::fill(a.q.begin(), a.q.end(), 0.f);
  a.forward(window(2, 1));
  EXPECT_EQ(a.keys_seen(4), 4);  // 2 3 4 5
  a.forward(window(kUnbounded, 0));
  EXPECT_EQ(a.keys_seen(4), 5);
  a.forward(streaming(0, 3));  // a window of 3 tokens, itself included
  EXPECT_EQ(a.keys_seen(8), 3);
}

TEST(Contract, AnEmptyRowIsZeroMinusInfinityAndZeroGradients) {
  Attention a({1, 2, 6, 6, {}}, 1);
  a.both(~causal() & ~sinks(3));  // the last rows see nothing; keys 0..2 are seen by nobody
  for (size_t head = 0; head < 2; ++head) {
    EXPECT_EQ(a.lse[head * 6 + 5], -kInfinity);
    for (size_t x = 0; x < 4; ++x) {
      EXPECT_EQ(a.out[(head * 6 + 5) * 4 + x], 0.f);
      EXPECT_FALSE(std::signbit(a.out[(head * 6 + 5) * 4 + x]));
      EXPECT_EQ(a.dq[(head * 6 + 5) * 4 + x], 0.f);
    }
  }
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(a.dk[i], 0.f);
    EXPECT_EQ(a.dv[i], 0.f);
  }
}

TEST(Contract, WhatIsNotAttendedNeverShows) {
  for (const Pattern& pattern : {causal(), window(3), dilated(2), exponential(), random(1, 3, 2)}) {
    const Shape shape{1, 2, 40, 40, {}};
    Attention clean(shape, 1);
    clean.both(pattern & ~global_at({7}));  // query 7 sees nothing, key 7 is seen by nobody
    for (const float poison : {kNan, kInfinity, -kInfinity}) {
      Attention bad(shape, 1);
      for (size_t x = 0; x < 4; ++x) {
        bad.k[7 * 4 + x] = bad.v[7 * 4 + x] = poison;
        bad.q[7 * 4 + x] = bad.dout[7 * 4 + x] = poison;
      }
      bad.both(pattern & ~global_at({7}));
      // Rows near a NaN may be done again by a more exact path: the same numbers, not the same
      // bits.
      for (const auto& [got, want] : {std::pair{&bad.out, &clean.out},
                                      {&bad.lse, &clean.lse},
                                      {&bad.dq, &clean.dq},
                                      {&bad.dk, &clean.dk},
                                      {&bad.dv, &clean.dv}}) {
        for (size_t i = 0; i < got->size(); ++i) {
          if ((*got)[i] == (*want)[i]) continue;  // -inf too
          ASSERT_NEAR((*got)[i], (*want)[i], 4e-6) << pattern.text() << " with " << poison;
        }
      }
    }
  }
}

TEST(Contract, AnAttendedNanShowsInEveryRowThatSeesItAndNoOther) {
  Attention clean({1, 1, 40, 40, {}}), bad({1, 1, 40, 40, {}});
  bad.v[20 * 4 + 1] = kNan;
  clean.forward(window(3)), bad.forward(window(3));
  for (size_t i = 0; i < bad.out.size(); ++i) {
    const bool sees = i / 4 >= 17 && i / 4 <= 23 && i % 4 == 1;
    if (sees) {
      EXPECT_TRUE(std::isnan(bad.out[i])) << i;
    } else {
      EXPECT_NEAR(bad.out[i], clean.out[i], 2e-6) << i;
    }
  }
  bad.v[20 * 4 + 1] = 0, bad.k[20 * 4] = kNan;
  bad.forward(window(3));
  for (size_t row = 0; row < 40; ++row) {
    EXPECT_EQ(std::isnan(bad.lse[row]), row >= 17 && row <= 23) << row;
  }
}

TEST(Contract, SoftcapComesBeforeTheMask) {
  Attention a({1, 1, 1, 2, {}}, 1, 1, 1);
  a.q = {1}, a.k = {100, -100}, a.v = {1, 0};
  a.options.scale = 1, a.options.softcap = 1;
  a.forward(dense());  // scores 1 and -1
  EXPECT_NEAR(a.out[0], 1 / (1 + std::exp(-2.0)), 1e-6);
  a.forward(sinks(1));
  EXPECT_NEAR(a.lse[0], 1, 1e-6);
}

TEST(Contract, TheSinkIsOneMoreTermOfTheSum) {
  Attention a({1, 2, 1, 2, {}}, 1, 1, 1);
  a.q = {0, 0}, a.v = {4, 4};
  const std::vector<float> sink = {std::log(2.f), -kInfinity};
  a.options.sink = TensorView(sink.data(), DType::f32, {2});
  a.forward(dense());
  EXPECT_NEAR(a.out[0], 2, 1e-6);  // two keys and a sink of weight two
  EXPECT_NEAR(a.lse[0], std::log(4.0), 1e-6);
  EXPECT_NEAR(a.out[1], 4, 1e-6);  // a sink of -inf is no sink
  a.forward(~dense());
  EXPECT_EQ(a.out[0], 0.f);
  EXPECT_EQ(a.lse[0], sink[0]);
  EXPECT_EQ(a.lse[1], -kInfinity);
}

TEST(Contract, LseIsTheNaturalLogarithmInFp32) {
  Attention a({1, 1, 1, 1000, {}}, 1, 4, 4);
  std::fill(a.q.begin(), a.q.end(), 0.f);
  a.forward(dense());
  EXPECT_NEAR(a.lse[0], std::log(1000.0), 1e-6);
}

TEST(Contract, SixteenBitInputsAreSummedInFp32) {
  // 4,097 values of 1 and one of 4,097: in 16 bits the sum would stop counting at 256 or 2,048.
  const int64_t keys = 4097;
  const auto mean_of = [&](auto from, DType dtype) {
    using Storage = decltype(from(0.f));
    std::vector<Storage> q(1, from(0.f)), k(size_t(keys), from(1.f)), v(size_t(keys), from(1.f)),
        out(1);
    std::vector<float> lse(1);
    attention_forward(
        TensorView(q.data(), dtype, {1, 1, 1, 1}), TensorView(k.data(), dtype, {1, 1, keys, 1}),
        TensorView(v.data(), dtype, {1, 1, keys, 1}), plan(dense(), 1, keys),
        TensorView(out.data(), dtype, {1, 1, 1, 1}), TensorView(lse.data(), DType::f32, {1, 1, 1}));
    EXPECT_EQ(std::llround(std::exp(double(lse[0]))), keys) << to_string(dtype);
    return double(to_f32(out[0]));
  };
  EXPECT_EQ(mean_of([](float x) { return to_f16(x); }, DType::f16), 1);
  EXPECT_EQ(mean_of([](float x) { return to_bf16(x); }, DType::bf16), 1);
}

TEST(Contract, NoSilentReductionOfFp32) {
  // q . k = 1 + 2^-20: TF32 or bf16 products would lose the second term.
  Attention a({1, 1, 1, 1, {}}, 1, 2, 1);
  a.q = {1, 0x1p-10f}, a.k = {1, 0x1p-10f}, a.options.scale = 1;
  a.forward(dense());
  EXPECT_EQ(a.lse[0], 1 + 0x1p-20f);
}

TEST(Contract, MergingDisjointPartsGivesTheWhole) {
  const Shape shape{1, 2, 9, 30, {}};
  Attention whole(shape), first(shape), second(shape);
  whole.forward(dense()), first.forward(sinks(11)), second.forward(~sinks(11));
  merge(first.on_q(first.out, 4), first.lse_view(), second.on_q(second.out, 4), second.lse_view());
  for (size_t i = 0; i < whole.out.size(); ++i) EXPECT_NEAR(first.out[i], whole.out[i], 2e-6);
  for (size_t i = 0; i < whole.lse.size(); ++i) EXPECT_NEAR(first.lse[i], whole.lse[i], 2e-6);
}

TEST(Contract, TheSameCallGivesTheSameBits) {
  const Shape shape{2, 2, 130, 130, {}};
  Attention one(shape);
  one.options.threads = 1, one.both(strided(16));
  for (const int threads : {0, 2, 3, 7}) {
    Attention other(shape);
    other.options.threads = threads, other.both(strided(16));
    EXPECT_EQ(other.out, one.out);
    EXPECT_EQ(other.dq, one.dq);
    EXPECT_EQ(other.dk, one.dk);
    EXPECT_EQ(other.dv, one.dv);
  }
}

TEST(Contract, OutputsAreWrittenWholeWhateverTheyHeld) {
  Attention clean({1, 2, 20, 20, {}}, 1), dirty({1, 2, 20, 20, {}}, 1);
  for (auto* values : {&dirty.out, &dirty.lse, &dirty.dq, &dirty.dk, &dirty.dv}) {
    std::fill(values->begin(), values->end(), kNan);
  }
  const Pattern pattern = (causal() & window(2)) & ~global_at({5});
  clean.both(pattern), dirty.both(pattern);
  EXPECT_EQ(dirty.out, clean.out);
  EXPECT_EQ(dirty.lse, clean.lse);
  EXPECT_EQ(dirty.dq, clean.dq);
  EXPECT_EQ(dirty.dk, clean.dk);
  EXPECT_EQ(dirty.dv, clean.dv);
}

TEST(Contract, InHostMemoryNobodyIsAskedForAWorkspace) {
  Attention a({1, 2, 70, 70, {}});
  a.options.allocate = [](int64_t) -> void* {
    ADD_FAILURE() << "a call in host memory asks for a workspace";
    return nullptr;
  };
  a.both(causal() & window(9));
  release_workspaces({});  // and there is nothing to give back
}

TEST(Contract, APlanRecordsItsLengthsAndServesEveryHead) {
  Attention a({2, 4, 6, 6, {}}, 2), b({2, 4, 6, 6, {}}, 2);
  a.forward(plan(causal(), 6, 6)), b.forward(causal());
  EXPECT_EQ(a.out, b.out);
  EXPECT_THROW(a.forward(plan(causal(), 6, 7)), Error);
}

}  // namespace
}  // namespace keyhole
