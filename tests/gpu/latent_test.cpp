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

// Heads of one query that one CTA has, and that two have.
constexpr int64_t kOneCtaAndTwo[] = {64, 128};

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
  for (const int64_t heads : kOneCtaAndTwo) {
    LatentProblem p({.heads = heads, .q_len = 40, .entries = 300});
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
}

TEST_F(GpuLatent, RowsWithoutKeysAreEmpty) {
  for (const int64_t heads : kOneCtaAndTwo) {
    LatentProblem p({.heads = heads, .q_len = 3, .entries = 150});
    std::fill_n(p.lists_.begin(), 300, -1);
    p.lists_[299] = 7;  // the second row has one key, at its end
    p.send_lists();
    const LatentProblem::Result got = p.run("auto"), want = p.run("simple");
    EXPECT_EQ(got.lse[0], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(got.out[0], 0);
    expect_close(got, want, "");
  }
}

// Keys that carry the mass of all before them, ever more of it: the base of weights is far too low
// and is raised, in the first, a middle and the last block, in either half of a block.
TEST_F(GpuLatent, LateMaximaAreFound) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const int64_t heads : {16, 70, 128}) {
      for (const std::vector<int64_t>& places :
           {std::vector<int64_t>{200}, {3, 40, 70}, {100, 127, 128, 299}, {63, 64, 96, 160, 255}}) {
        LatentProblem p({.heads = heads, .q_len = 4, .k_len = 400, .entries = 300, .dtype = dtype});
        std::vector<float> q = p.q_.read(), k = p.k_.read();
        for (size_t i = 0; i < places.size(); ++i) {
          // Of one query head each, so that rows of a warp differ.
          const size_t head = i * 29 % size_t(heads), from = head * size_t(p.c.q_len);
          for (size_t x = 0; x < size_t(p.c.head_dim); ++x) {
            k[(5 + i) * size_t(p.c.head_dim) + x] =
                float(4 + i) * q[from * size_t(p.c.head_dim) + x];
          }
          for (int64_t t = 0; t < p.c.q_len; ++t) {
            p.lists_[size_t(t * p.c.entries + places[i])] = int32_t(5 + i);
          }
        }
        p.k_.write(k);
        p.send_lists();
        expect_close(p.run("auto"), p.run("simple"),
                     say(to_text(p.c), ", ", places.size(), " late maxima"));
      }
    }
  }
}

// Lists that end at, before and behind the end of a block and of half of one. Neighbours differ.
TEST_F(GpuLatent, ListsOfAnyLength) {
  for (const int64_t heads : {64, 65, 70, 127, 128}) {
    LatentProblem p(
        {.heads = heads, .q_len = 300, .k_len = 500, .entries = 321, .has_counts = true});
    constexpr int32_t kCounts[] = {0,  1,  31, 32,  33,  63,  64,  65,
                                   95, 96, 97, 127, 128, 129, 256, 321};
    std::vector<int32_t> used;
    for (int64_t t = 0; t < p.c.q_len; ++t) used.push_back(kCounts[size_t(t * 7) % 16]);
    p.send_counts(used);
    const LatentProblem::Result got = p.run("auto");
    expect_close(got, p.run("simple"), to_text(p.c));
    EXPECT_EQ(got.lse[0], -std::numeric_limits<float>::infinity());
  }
}

// There is no maximum to start from, and all scores are far below 0.
TEST_F(GpuLatent, AListMayBeginWithPadding) {
  for (const int64_t heads : kOneCtaAndTwo) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const float score : {-12.f, -30.f, -100.f}) {
        LatentProblem p({.heads = heads, .q_len = 2, .entries = 200, .dtype = dtype});
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
}

TEST_F(GpuLatent, NanOfKeysThatAreNotListedIsNotSeen) {
  for (const int64_t heads : kOneCtaAndTwo) {
    LatentProblem p({.heads = heads, .q_len = 5, .k_len = 1000, .entries = 100});
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
}

TEST_F(GpuLatent, TheSameBitsEveryTime) {
  for (const int64_t heads : kOneCtaAndTwo) {
    const LatentProblem p({.heads = heads, .q_len = 200, .k_len = 5000, .entries = 512});
    const LatentProblem::Result first = p.run("auto");
    for (int run = 0; run < 20; ++run) {
      const LatentProblem::Result again = p.run("auto");
      ASSERT_EQ(again.out, first.out) << run;
      ASSERT_EQ(again.lse, first.lse) << run;
    }
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
