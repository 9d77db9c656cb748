// tests/gpu/latent_test.cpp
// Attention over key lists in latent form (v is the first columns of k) on tensor cores: against
// the kernel that any GPU runs, and with numbers that only listed keys may reach.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/latent_problem.h"

namespace keyhole::test {
namespace {

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

class GpuLatent : public LatentTest {};

TEST_F(GpuLatent, AgreesWithTheKernelOfAnyGpu) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Latent& shape : latent_shapes()) {
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
