// tests/gpu/latent_test.cpp
// Attention over key lists in latent form (v is the first columns of k) on tensor cores: against
// the kernel that any GPU runs, and with numbers that only listed keys may reach.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/int_math.h"
#include "gpu/gpu_problem.h"

namespace keyhole::test {
namespace {

struct Latent {
  int64_t heads = 16, kv_heads = 1, q_len = 3, k_len = 300, entries = 200;
  int64_t head_dim = 576, v_head_dim = 512;
  DType dtype = DType::bf16;
  int64_t keys_per_entry = 1;
  bool has_counts = false, causal = false;
};
std::string to_text(const Latent& c) {
  return say(c.heads, " heads, ", c.kv_heads, " kv heads, q_len ", c.q_len, ", k_len ", c.k_len,
             ", ", c.entries, " entries, head_dim ", c.head_dim, " and ", c.v_head_dim, ", ",
             to_string(c.dtype), ", ", c.keys_per_entry, " keys an entry",
             c.has_counts ? ", counts" : "", c.causal ? ", causal" : "");
}

class LatentProblem {
 public:
  explicit LatentProblem(const Latent& shape, uint64_t seed = 1)
      : c(shape),
        q_(c.dtype, {1, c.heads, c.q_len, c.head_dim}),
        k_(c.dtype, {1, c.kv_heads, c.k_len, c.head_dim}),
        out_(c.dtype, {1, c.heads, c.q_len, c.v_head_dim}),
        lse_(DType::f32, {1, c.heads, c.q_len}),
        memory_(kGpu, std::max<int64_t>(1, c.kv_heads * c.q_len * c.entries) * 4),
        counts_(kGpu, c.kv_heads * c.q_len * 4) {
    Random random(seed);
    q_.draw(random), k_.draw(random);
    for (int64_t i = 0; i < c.kv_heads * c.q_len * c.entries; ++i) {
      const bool is_padding = random.chance(10);
      const int64_t named = ceil_div(c.k_len, c.keys_per_entry);
      lists_.push_back(is_padding ? -1 : int32_t(random.below(uint64_t(named))));
    }
    send_lists();
    std::vector<int32_t> used(size_t(c.kv_heads * c.q_len));
    for (int32_t& count : used) count = int32_t(random.below(uint64_t(c.entries + 1)));
    counts_.copy_from_host(used.data(), int64_t(used.size()) * 4);
  }

  void send_lists() const { memory_.copy_from_host(lists_.data(), int64_t(lists_.size()) * 4); }
  TensorView v() const {
    TensorView v = k_.view();
    v.shape[3] = c.v_head_dim;
    return v;
  }
  KeyListView lists() const {
    KeyListView lists{.indices = IndexView(static_cast<const int32_t*>(memory_.data()),
                                           {1, c.kv_heads, c.q_len, c.entries}),
                      .keys_per_entry = c.keys_per_entry,
                      .causal = c.causal};
    if (c.has_counts) {
      lists.counts =
          IndexView(static_cast<const int32_t*>(counts_.data()), {1, c.kv_heads, c.q_len, 1});
    }
    lists.indices.device = lists.counts.device = kGpu;
    return lists;
  }
  std::string kernel(const std::string& backend) const {
    AttentionOptions options;
    options.backend = backend;
    return kernel_for_forward(q_.view(), v(), lists(), options);
  }
  struct Result {
    std::vector<float> out, lse;
  };
  Result run(const std::string& backend) const {
    out_.fill(0xff), lse_.fill(0xff);
    AttentionOptions options;
    options.backend = backend;
    options.scale = 0.05;
    attention_forward(q_.view(), k_.view(), v(), lists(), out_.view(), lse_.view(), options);
    return {out_.read(), lse_.read()};
  }

  const Latent c;
  GpuTensor q_, k_, out_, lse_;
  GpuMemory memory_, counts_;
  std::vector<int32_t> lists_;
};

double worse(double worst, double got, double want) {
  const double off = std::abs(got - want);
  return std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(worst, off);
}

// Both round weights or sums to 16 bits somewhere.
void expect_close(const LatentProblem::Result& got, const LatentProblem::Result& want,
                  const std::string& text) {
  double largest = 0, worst = 0, worst_lse = 0;
  for (const float x : want.out) largest = std::max(largest, std::abs(double(x)));
  for (size_t i = 0; i < want.out.size(); ++i) {
    worst = worse(worst, got.out[i], want.out[i]);
  }
  for (size_t i = 0; i < want.lse.size(); ++i) {
    if (got.lse[i] == want.lse[i]) continue;
    // Of their size: scores are sums of fp32 products.
    const double size = std::max(1.0, std::abs(double(want.lse[i])) / 10);
    worst_lse = worse(worst_lse, got.lse[i] / size, want.lse[i] / size);
  }
  EXPECT_LE(worst, 0.01 * largest + 1e-6) << text;
  EXPECT_LE(worst_lse, 1e-4) << text;
}

class GpuLatent : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!gpus().empty() && gpus()[0].compute_capability != 90) GTEST_SKIP() << "needs sm_90";
  }
};

TEST_F(GpuLatent, AgreesWithTheKernelOfAnyGpu) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Latent& shape :
         {Latent{}, Latent{.heads = 128, .entries = 130}, Latent{.heads = 70, .entries = 64},
          Latent{.heads = 1, .entries = 65}, Latent{.heads = 6, .kv_heads = 2, .q_len = 50},
          Latent{.heads = 16, .entries = 1}, Latent{.heads = 16, .entries = 500, .head_dim = 512},
          Latent{.heads = 8, .entries = 100, .head_dim = 320, .v_head_dim = 264},
          Latent{.heads = 64, .q_len = 300, .entries = 60, .keys_per_entry = 4, .causal = true},
          Latent{.heads = 16, .q_len = 20, .entries = 300, .has_counts = true},
          Latent{.heads = 128,
                 .q_len = 9,
                 .k_len = 1000,
                 .entries = 20,
                 .keys_per_entry = 64,
                 .has_counts = true,
                 .causal = true}}) {
      Latent c = shape;
      c.dtype = dtype;
      const LatentProblem p(c);
      if (c.head_dim > c.v_head_dim) {  // a v of the same width may as well be a tensor of its own
        EXPECT_NE(p.kernel("auto").find(".latent"), std::string::npos) << p.kernel("auto");
      }
      expect_close(p.run("auto"), p.run("simple"), to_text(c));
    }
  }
}

TEST_F(GpuLatent, CountsItsKeys) {
  LatentProblem p({.heads = 64, .q_len = 40, .entries = 300});
  p.q_.fill(0);
  const LatentProblem::Result got = p.run("auto");
  for (int64_t t = 0; t < p.c.q_len; ++t) {
    int64_t count = 0;
    for (int64_t i = 0; i < p.c.entries; ++i) count += p.lists_[size_t(t * p.c.entries + i)] >= 0;
    for (int64_t h = 0; h < p.c.heads; ++h) {
      EXPECT_NEAR(got.lse[size_t(h * p.c.q_len + t)], std::log(double(count)), 1e-5);
    }
  }
}

TEST_F(GpuLatent, RowsWithoutKeysAreEmpty) {
  LatentProblem p({.q_len = 3, .entries = 150});
  std::fill_n(p.lists_.begin(), 300, -1);
  p.lists_[299] = 7;  // the second row has one key, at its end
  p.send_lists();
  const LatentProblem::Result got = p.run("auto"), want = p.run("simple");
  EXPECT_EQ(got.lse[0], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(got.out[0], 0);
  expect_close(got, want, "");
}

// One key of the second block carries the mass of all others: the maximum of the first block is far
// too low, and the list is followed again.
TEST_F(GpuLatent, ALateMaximumIsFound) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    LatentProblem p({.q_len = 4, .k_len = 400, .entries = 300, .dtype = dtype});
    std::vector<float> q = p.q_.read(), k = p.k_.read();
    for (int64_t x = 0; x < p.c.head_dim; ++x) k[size_t(5 * p.c.head_dim + x)] = 8 * q[size_t(x)];
    p.k_.write(k);
    for (int64_t t = 0; t < p.c.q_len; ++t) p.lists_[size_t(t * p.c.entries + 200)] = 5;
    p.send_lists();
    expect_close(p.run("auto"), p.run("simple"), to_string(dtype));
  }
}

// There is no maximum to start from, and all scores are far below 0.
TEST_F(GpuLatent, AListMayBeginWithPadding) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const float score : {-12.f, -30.f, -100.f}) {
      LatentProblem p({.q_len = 2, .entries = 200, .dtype = dtype});
      std::vector<float> k = p.k_.read();
      for (float& x : k) x = score / (0.05f * float(p.c.head_dim)) + x / 100;
      p.k_.write(k);
      p.q_.write(std::vector<float>(p.q_.read().size(), 1.f));
      std::fill_n(p.lists_.begin(), 64, -1);
      p.send_lists();
      const LatentProblem::Result got = p.run("auto"), want = p.run("simple");
      EXPECT_GT(std::abs(want.out[0]), 0.1) << score;
      expect_close(got, want, say(to_string(dtype), ", scores near ", score));
    }
  }
}

TEST_F(GpuLatent, NanOfKeysThatAreNotListedIsNotSeen) {
  LatentProblem p({.q_len = 5, .k_len = 1000, .entries = 100});
  std::vector<bool> is_listed(size_t(p.c.k_len));
  for (const int32_t key : p.lists_) {
    if (key >= 0) is_listed[size_t(key)] = true;
  }
  const LatentProblem::Result want = p.run("auto");
  std::vector<float> k = p.k_.read();
  for (int64_t key = 0; key < p.c.k_len; ++key) {
    for (int64_t x = 0; x < p.c.head_dim && !is_listed[size_t(key)]; ++x) {
      k[size_t(key * p.c.head_dim + x)] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  p.k_.write(k);
  const LatentProblem::Result got = p.run("auto");
  EXPECT_EQ(got.out, want.out);
  EXPECT_EQ(got.lse, want.lse);
}

TEST_F(GpuLatent, TheSameBitsEveryTime) {
  const LatentProblem p({.heads = 128, .q_len = 200, .k_len = 5000, .entries = 512});
  const LatentProblem::Result first = p.run("auto");
  for (int run = 0; run < 20; ++run) {
    const LatentProblem::Result again = p.run("auto");
    ASSERT_EQ(again.out, first.out) << run;
    ASSERT_EQ(again.lse, first.lse) << run;
  }
}

// A v of its own is not read from k.
TEST_F(GpuLatent, OtherValuesAreLeftToAnotherKernel) {
  for (const Latent& c : {Latent{}, Latent{.head_dim = 128, .v_head_dim = 128}}) {
    const LatentProblem p(c);
    const GpuTensor v(DType::bf16, {1, 1, c.k_len, c.v_head_dim});
    EXPECT_EQ(kernel_for_forward(p.q_.view(), v.view(), p.lists(), {}).find(".latent"),
              std::string::npos);
  }
}

}  // namespace
}  // namespace keyhole::test
