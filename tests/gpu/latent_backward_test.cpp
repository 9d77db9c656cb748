// tests/gpu/latent_backward_test.cpp
// Gradients over key lists in latent form on tensor cores: against the kernel that any GPU runs,
// and with numbers that only listed keys and queries with keys may pass on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/latent_problem.h"

namespace keyhole::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class LatentGradients : public LatentProblem {
 public:
  explicit LatentGradients(const Latent& shape, uint64_t seed = 1)
      : LatentProblem(shape, seed),
        dout_(c.dtype, {1, c.heads, c.q_len, c.v_head_dim}),
        dq_(c.dtype, {1, c.heads, c.q_len, c.head_dim}),
        dk_(c.dtype, {1, c.kv_heads, c.k_len, c.head_dim}),
        dv_(c.dtype, {1, c.kv_heads, c.k_len, c.v_head_dim}),
        sink_(DType::f32, {c.heads}),
        dsink_(DType::f32, {c.heads}) {
    Random random(seed + 1);
    dout_.draw(random), sink_.draw(random);
  }

  AttentionOptions options(const std::string& backend) const {
    AttentionOptions options;
    options.backend = backend;
    options.scale = 0.05;
    if (has_sink) options.sink = sink_.view();
    return options;
  }
  Gradients places() const {
    return {dq_.view(), dk_.view(), dv_.view(), has_sink ? dsink_.view() : TensorView()};
  }
  std::string kernel(AttentionOptions options) const {
    return kernel_for_backward(q_.view(), v(), lists(), options);
  }
  int64_t workspace() const {
    return backward_workspace_bytes(dout_.view(), q_.view(), k_.view(), v(), out_.view(),
                                    lse_.view(), lists(), places(), options("auto"));
  }
  // Of out and lse that any GPU makes.
  struct Result {
    std::vector<float> dq, dk, dv, dsink;
  };
  Result run_backward(const std::string& backend) const {
    out_.fill(0xff), lse_.fill(0xff);
    attention_forward(q_.view(), k_.view(), v(), lists(), out_.view(), lse_.view(),
                      options("simple"));
    dq_.fill(0xff), dk_.fill(0xff), dv_.fill(0xff), dsink_.fill(0xff);
    attention_backward(dout_.view(), q_.view(), k_.view(), v(), out_.view(), lse_.view(), lists(),
                       places(), options(backend));
    return {dq_.read(), dk_.read(), dv_.read(), has_sink ? dsink_.read() : std::vector<float>()};
  }

  bool has_sink = false;
  GpuTensor dout_, dq_, dk_, dv_, sink_, dsink_;
};

// The same numbers but for rounding, and NaN or infinity at the same places.
void expect_close(const std::vector<float>& got, const std::vector<float>& want,
                  const std::string& text) {
  ASSERT_EQ(got.size(), want.size()) << text;
  double largest = 0, worst = 0;
  for (const float x : want) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(double(x)));
  }
  int64_t others = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const bool is_finite = std::isfinite(want[i]);
    others += is_finite != std::isfinite(got[i]);
    if (is_finite) worst = worse(worst, got[i], want[i]);
  }
  EXPECT_EQ(others, 0) << text;
  EXPECT_LE(worst, 0.01 * largest + 1e-5) << text;
}
void expect_close(const LatentGradients::Result& got, const LatentGradients::Result& want,
                  const std::string& text) {
  expect_close(got.dq, want.dq, "dq, " + text);
  expect_close(got.dk, want.dk, "dk, " + text);
  expect_close(got.dv, want.dv, "dv, " + text);
  expect_close(got.dsink, want.dsink, "dsink, " + text);
}

class GpuLatentBackward : public LatentTest {};

TEST_F(GpuLatentBackward, AgreesWithTheKernelOfAnyGpu) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Latent& shape : latent_shapes()) {
      Latent c = shape;
      c.dtype = dtype;
      const LatentGradients p(c);
      if (c.head_dim > c.v_head_dim) {  // a v of the same width may as well be a tensor of its own
        EXPECT_NE(p.kernel(p.options("auto")).find(".latent"), std::string::npos);
      }
      expect_close(p.run_backward("auto"), p.run_backward("simple"), to_text(c));
    }
  }
}

// More heads than a cluster has: parts of a sum come from several.
TEST_F(GpuLatentBackward, TakesAnyNumberOfHeads) {
  for (const int64_t heads : {1, 63, 64, 65, 127, 129, 256, 300}) {
    const LatentGradients p({.heads = heads, .q_len = 4, .entries = 100});
    expect_close(p.run_backward("auto"), p.run_backward("simple"), say(heads, " heads"));
  }
}

TEST_F(GpuLatentBackward, TakesASink) {
  LatentGradients p({.heads = 70, .q_len = 10});
  p.has_sink = true;
  EXPECT_NE(p.kernel(p.options("auto")).find(".latent"), std::string::npos);
  expect_close(p.run_backward("auto"), p.run_backward("simple"), "sink");
}

// Nothing of such a row counts, whatever dout is there.
TEST_F(GpuLatentBackward, RowsWithoutKeysHaveNoGradient) {
  LatentGradients p({.q_len = 3, .entries = 150});
  std::fill_n(p.lists_.begin(), 300, -1);
  p.lists_[299] = 7;  // the second row has one key, at its end
  p.send_lists();
  std::vector<float> dout = p.dout_.read();
  for (int64_t h = 0; h < p.c.heads; ++h) dout[size_t(h * 3 * p.c.v_head_dim)] = kNan;
  p.dout_.write(dout);
  const LatentGradients::Result got = p.run_backward("auto");
  EXPECT_EQ(got.dq[0], 0);
  expect_close(got, p.run_backward("simple"), "");
}

TEST_F(GpuLatentBackward, NanOfKeysThatAreNotListedIsNotSeen) {
  LatentGradients p({.heads = 128, .q_len = 5, .k_len = 1000, .entries = 100});
  std::vector<bool> is_listed(size_t(p.c.k_len));
  for (const int32_t key : p.lists_) {
    if (key >= 0) is_listed[size_t(key)] = true;
  }
  const LatentGradients::Result want = p.run_backward("simple");
  std::vector<float> k = p.k_.read();
  for (int64_t key = 0; key < p.c.k_len; ++key) {
    for (int64_t x = 0; x < p.c.head_dim && !is_listed[size_t(key)]; ++x) {
      k[size_t(key * p.c.head_dim + x)] = kNan;
    }
  }
  p.k_.write(k);
  const LatentGradients::Result got = p.run_backward("auto");
  expect_close(got, want, "");
  for (int64_t key = 0; key < p.c.k_len; ++key) {
    if (is_listed[size_t(key)]) continue;
    EXPECT_EQ(got.dk[size_t(key * p.c.head_dim)], 0) << key;
  }
}

// NaN spreads to what depends on it, and no further: rows that are not finite are done again, pair
// by pair.
TEST_F(GpuLatentBackward, NanReachesWhatDependsOnIt) {
  for (const bool is_key : {true, false}) {
    LatentGradients p({.heads = 70, .q_len = 20, .k_len = 400, .entries = 40});
    const GpuTensor& spoilt = is_key ? p.k_ : p.dout_;
    std::vector<float> numbers = spoilt.read();
    numbers[size_t((is_key ? p.lists_[3] < 0 ? 0 : p.lists_[3] : 2) *
                   (is_key ? p.c.head_dim : p.c.v_head_dim))] = kNan;
    spoilt.write(numbers);
    const LatentGradients::Result want = p.run_backward("simple");
    EXPECT_TRUE(std::ranges::any_of(want.dk, [](float x) { return std::isnan(x); }));
    expect_close(p.run_backward("auto"), want, is_key ? "a key" : "dout");
  }
}

TEST_F(GpuLatentBackward, ADeterministicCallHasAnotherKernel) {
  const LatentGradients p(Latent{});
  AttentionOptions options = p.options("auto");
  options.deterministic = true;
  EXPECT_EQ(p.kernel(options).find(".latent"), std::string::npos);
  options = p.options("auto");
  options.softcap = 30;
  EXPECT_EQ(p.kernel(options).find(".latent"), std::string::npos);
  const GpuTensor v(DType::bf16, {1, 1, p.c.k_len, p.c.v_head_dim});
  EXPECT_EQ(kernel_for_backward(p.q_.view(), v.view(), p.lists(), {}).find(".latent"),
            std::string::npos);
}

// Sums of dk and dv; of a query only two numbers a head.
TEST_F(GpuLatentBackward, TheWorkspaceGrowsWithKeys) {
  const LatentGradients few({.q_len = 8}), many({.q_len = 2008});
  EXPECT_LE(many.workspace() - few.workspace(), 2000 * 16 * 8 + 1024);
  EXPECT_GE(few.workspace(), 300 * (576 + 512) * 4);
}

}  // namespace
}  // namespace keyhole::test
