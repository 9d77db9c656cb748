// tests/gpu/latent_problem.h
// Attention over key lists in latent form: v is the first columns of k.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/int_math.h"
#include "gpu/gpu_problem.h"

namespace keyhole::test {

struct Latent {
  int64_t heads = 16, kv_heads = 1, q_len = 3, k_len = 300, entries = 200;
  int64_t head_dim = 576, v_head_dim = 512;
  DType dtype = DType::bf16;
  int64_t keys_per_entry = 1;
  bool has_counts = false, causal = false;
};
inline std::string to_text(const Latent& c) {
  return say(c.heads, " heads, ", c.kv_heads, " kv heads, q_len ", c.q_len, ", k_len ", c.k_len,
             ", ", c.entries, " entries, head_dim ", c.head_dim, " and ", c.v_head_dim, ", ",
             to_string(c.dtype), ", ", c.keys_per_entry, " keys an entry",
             c.has_counts ? ", counts" : "", c.causal ? ", causal" : "");
}

// Any number of heads, ragged lists, narrow heads, and all that a list can have. 65 to 128 heads
// take pairs of CTAs in the forward pass, and so do 193 to 256; others do not.
inline std::vector<Latent> latent_shapes() {
  return {Latent{},
          Latent{.heads = 128, .entries = 130},
          Latent{.heads = 70, .entries = 64},
          Latent{.heads = 65, .q_len = 40, .entries = 129, .has_counts = true},
          Latent{.heads = 127, .entries = 330, .head_dim = 512},
          Latent{.heads = 140, .kv_heads = 2, .entries = 200, .head_dim = 320, .v_head_dim = 264},
          Latent{.heads = 129, .entries = 70},
          Latent{.heads = 200, .entries = 100, .head_dim = 192, .v_head_dim = 136},
          Latent{.heads = 1, .entries = 65},
          Latent{.heads = 6, .kv_heads = 2, .q_len = 50},
          Latent{.heads = 16, .entries = 1},
          Latent{.heads = 16, .entries = 500, .head_dim = 512},
          Latent{.heads = 8, .entries = 100, .head_dim = 320, .v_head_dim = 264},
          Latent{.heads = 16, .entries = 100, .head_dim = 192, .v_head_dim = 136},
          Latent{.heads = 64, .q_len = 300, .entries = 60, .keys_per_entry = 4, .causal = true},
          Latent{.heads = 16, .q_len = 20, .entries = 300, .has_counts = true},
          Latent{.heads = 128,
                 .q_len = 9,
                 .k_len = 1000,
                 .entries = 20,
                 .keys_per_entry = 64,
                 .has_counts = true,
                 .causal = true}};
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
    send_counts(used);
  }

  // Of every list of every kv head.
  void send_counts(const std::vector<int32_t>& used) const {
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

// The larger one of `worst` and the difference; infinite if there is a NaN.
inline double worse(double worst, double got, double want) {
  const double off = std::abs(got - want);
  return std::isnan(off) ? std::numeric_limits<double>::infinity() : std::max(worst, off);
}

// Skips its tests where there is no Hopper.
class LatentTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!gpus().empty() && gpus()[0].compute_capability != 90) GTEST_SKIP() << "needs sm_90";
  }
};

}  // namespace keyhole::test
