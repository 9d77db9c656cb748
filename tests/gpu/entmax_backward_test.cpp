// tests/gpu/entmax_backward_test.cpp
// The backward pass of entmax and top_k on a GPU, against that of the CPU on the same numbers: from
// a support, from a support that some rows have not, and from none. Lambda and the support come
// from the CPU, so nothing here depends on a forward pass of the GPU.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "gpu/gpu_problem.h"

namespace keyhole::test {
namespace {

using EntmaxBackward = GpuTest;

enum class Supports : uint8_t { all, some, none };
constexpr const char* kSupportNames[] = {"all rows", "two rows of three", "no row"};

struct Call {
  const char* pattern;
  Normalizer normalizer;
  DType dtype = DType::f32;
  int64_t heads = 2, kv_heads = 1, q_len = 150, k_len = 150, head_dim = 64, v_head_dim = 64;
  double softcap = 0;
  bool has_sink = false, has_dlse = false;
  int64_t batch = 2;
};

std::string to_string(const Call& call) {
  return say(call.pattern, ", ", to_string(call.normalizer), ", ", to_string(call.dtype),
             ", heads ", call.heads, "/", call.kv_heads, ", lengths ", call.q_len, "/", call.k_len,
             ", dims ", call.head_dim, "/", call.v_head_dim);
}

// A tensor in both memories. On the host it is f32, with the numbers that the GPU's dtype can hold.
struct Both {
  GpuTensor gpu;
  std::vector<float> host;
  std::vector<int64_t> shape;

  Both() = default;
  Both(DType dtype, std::initializer_list<int64_t> sizes, uint64_t seed)
      : gpu(dtype, sizes), shape(sizes) {
    Random random(seed);
    gpu.draw(random);
    host = gpu.read();
  }
  TensorView on_host() const {
    if (shape.size() == 1) return {host.data(), DType::f32, {shape[0]}};
    if (shape.size() == 3) return {host.data(), DType::f32, {shape[0], shape[1], shape[2]}};
    return {host.data(), DType::f32, {shape[0], shape[1], shape[2], shape[3]}};
  }
};

class Problem {
 public:
  explicit Problem(const Call& call)
      : call_(call),
        plan_(plan(parse(call.pattern), {call.batch, call.heads, call.q_len, call.k_len, {}})) {
    const auto [b, h, kv] = std::tuple{call.batch, call.heads, call.kv_heads};
    q_ = Both(call.dtype, {b, h, call.q_len, call.head_dim}, 1);
    k_ = Both(call.dtype, {b, kv, call.k_len, call.head_dim}, 2);
    v_ = Both(call.dtype, {b, kv, call.k_len, call.v_head_dim}, 3);
    dout_ = Both(call.dtype, {b, h, call.q_len, call.v_head_dim}, 4);
    out_ = Both(call.dtype, {b, h, call.q_len, call.v_head_dim}, 5);
    lse_ = Both(DType::f32, {b, h, call.q_len}, 6);
    dlse_ = Both(DType::f32, {b, h, call.q_len}, 7);
    sink_ = Both(DType::f32, {h}, 8);
    dq_ = Both(call.dtype, {b, h, call.q_len, call.head_dim}, 9);
    dk_ = Both(call.dtype, {b, kv, call.k_len, call.head_dim}, 10);
    dv_ = Both(call.dtype, {b, kv, call.k_len, call.v_head_dim}, 11);
    dsink_ = Both(DType::f32, {h}, 12);
    support_.resize(size_t(b * h * call.q_len * kSupportKeys));
  }

  // On the CPU: lambda, the support and the gradients that are wanted.
  void prepare() {
    AttentionOptions options = common_options(Device{});
    attention_forward(q_.on_host(), k_.on_host(), v_.on_host(), plan_, out_.on_host(),
                      lse_.on_host(), options);
    lse_.gpu.write(lse_.host);
    attention_backward(dout_.on_host(), q_.on_host(), k_.on_host(), v_.on_host(), out_.on_host(),
                       lse_.on_host(), plan_, gradients(Device{}), options);
  }

  int64_t longest_support() const {
    int64_t longest = 0;
    for (size_t row = 0; row < support_.size(); row += kSupportKeys) {
      if (support_[row] == kLongSupport) return kSupportKeys + 1;
      const auto begin = support_.begin() + int64_t(row);
      longest = std::max<int64_t>(longest, std::count_if(begin, begin + kSupportKeys,
                                                         [](int32_t key) { return key >= 0; }));
    }
    return longest;
  }

  void run(Supports supports, bool is_deterministic) {
    AttentionOptions options = common_options(kGpu);
    options.backend = "simple";
    options.deterministic = is_deterministic;
    std::vector<int32_t> given = support_;
    for (size_t row = 0; row < given.size() && supports == Supports::some;
         row += 3 * kSupportKeys) {
      given[row] = kLongSupport;
    }
    const GpuMemory memory(kGpu, int64_t(given.size() * sizeof(int32_t)) + 4);
    memory.copy_from_host(given.data(), int64_t(given.size() * sizeof(int32_t)));
    options.support = {};
    if (supports != Supports::none) {
      options.support = IndexView(static_cast<const int32_t*>(memory.data()),
                                  {call_.batch, call_.heads, call_.q_len, kSupportKeys});
      options.support.device = kGpu;
    }
    for (const Both* tensor : {&dq_, &dk_, &dv_, &dsink_}) tensor->gpu.fill(0xff);
    attention_backward(dout_.gpu.view(), q_.gpu.view(), k_.gpu.view(), v_.gpu.view(),
                       out_.gpu.view(), lse_.gpu.view(), plan_, gradients(kGpu), options);
    synchronize(kGpu);
  }

  void expect_agreement(const std::string& what) const {
    expect_near(what + ", dq", dq_);
    expect_near(what + ", dk", dk_);
    expect_near(what + ", dv", dv_);
    if (call_.has_sink) expect_near(what + ", dsink", dsink_);
  }
  std::vector<std::vector<float>> results() const {
    std::vector<std::vector<float>> all = {dq_.gpu.read(), dk_.gpu.read(), dv_.gpu.read()};
    if (call_.has_sink) all.push_back(dsink_.gpu.read());  // without one it was filled with NaN
    return all;
  }

 private:
  AttentionOptions common_options(Device device) {
    const bool is_host = device.kind == Device::Kind::cpu;
    AttentionOptions options;
    options.normalizer = call_.normalizer;
    options.softcap = call_.softcap;
    if (call_.has_sink) options.sink = is_host ? sink_.on_host() : sink_.gpu.view();
    if (call_.has_dlse) options.dlse = is_host ? dlse_.on_host() : dlse_.gpu.view();
    if (is_host) {
      options.support =
          IndexView(support_.data(), {call_.batch, call_.heads, call_.q_len, kSupportKeys});
    }
    return options;
  }
  Gradients gradients(Device device) const {
    if (device.kind == Device::Kind::cuda) {
      Gradients all{dq_.gpu.view(), dk_.gpu.view(), dv_.gpu.view(), {}};
      if (call_.has_sink) all.dsink = dsink_.gpu.view();
      return all;
    }
    Gradients all{dq_.on_host(), dk_.on_host(), dv_.on_host(), {}};
    if (call_.has_sink) all.dsink = dsink_.on_host();
    return all;
  }

  static double rounding_of(DType dtype) {
    return dtype == DType::f32 ? 0 : dtype == DType::f16 ? 0x1p-10 : 0x1p-7;
  }
  void expect_near(const std::string& what, const Both& tensor) const {
    const std::vector<float> got = tensor.gpu.read();
    double largest = 0;
    for (const float want : tensor.host) largest = std::max(largest, double(std::abs(want)));
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = tensor.host[i];
      const double bound =
          1e-4 * largest + 1e-6 + rounding_of(tensor.gpu.view().dtype) * std::abs(want);
      ASSERT_LE(std::abs(double(got[i]) - want), bound)
          << what << "[" << i << "] is " << got[i] << ", not " << want;
    }
  }

  Call call_;
  Plan plan_;
  Both q_, k_, v_, dout_, out_, lse_, dlse_, sink_, dq_, dk_, dv_, dsink_;
  std::vector<int32_t> support_;
};

const Call kCalls[] = {
    {"causal", entmax(1.5)},
    {"causal", entmax(1.5), DType::bf16},
    {"causal", entmax(1.5), DType::f16, 4, 2},
    {"causal", entmax(2), DType::f16},
    {"causal", entmax(1.25), DType::bf16, 2, 2, 300, 300},  // long rows
    {"causal", entmax(1.75), DType::f32, 6, 2, 65, 200, 128, 96},
    {"dense", entmax(1.3), DType::f32, 2, 1, 70, 90, 33, 17},
    {"causal", softmax(8), DType::bf16, 4, 1, 200, 200, 128, 128},
    {"causal", entmax(1.5, 5), DType::f32, 2, 1, 100, 100, 24, 8},
    {"causal", softmax(100), DType::f32, 2, 1, 150, 150, 40, 40},  // more than a support has
    {"window(20)", entmax(1.5), DType::bf16, 2, 2, 100, 100, 576, 512},
    {"window(20)", entmax(1.5), DType::f32, 2, 1, 40, 40, 576, 576},
    {"strided(8)", entmax(1.5), DType::bf16, 2, 1, 300, 300},
    {"causal", entmax(1.5), DType::bf16, 2, 1, 150, 150, 64, 64, 5., true, true},
    {"causal", entmax(1.5), DType::f32, 2, 1, 150, 150, 64, 64, 0, true, true},
    {"causal", softmax(9), DType::f32, 3, 3, 90, 140, 64, 64, 3., true, true},
    {"causal", entmax(2), DType::f32, 2, 1, 120, 120, 64, 64, 0, true, true},
    {"window(3) & ~causal", entmax(1.5), DType::f16, 2, 1, 50, 50},  // rows without keys
    {"dense", entmax(1.5), DType::bf16, 2, 1, 40, 0},
    {"dense", entmax(1.5), DType::bf16, 2, 1, 0, 40},
};

TEST_F(EntmaxBackward, AgreesWithTheCpu) {
  for (const Call& call : kCalls) {
    Problem problem(call);
    problem.prepare();
    for (const Supports supports : {Supports::all, Supports::some, Supports::none}) {
      for (const bool is_deterministic : {false, true}) {
        problem.run(supports, is_deterministic);
        problem.expect_agreement(say(to_string(call), ", support of ",
                                     kSupportNames[size_t(supports)],
                                     is_deterministic ? ", in order" : ""));
      }
    }
  }
}

// Every row lists key 0: its entries are split among CTAs, and their sums combined.
TEST_F(EntmaxBackward, AddsUpAKeyThatEveryRowLists) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Call call = {"window(2) | sinks(1)", softmax(8), dtype, 4, 2, 3000, 3000, 64, 64};
    Problem problem(call);
    problem.prepare();
    ASSERT_LE(problem.longest_support(), 8);
    for (const bool is_deterministic : {false, true}) {
      problem.run(Supports::all, is_deterministic);
      problem.expect_agreement(say(to_string(call), is_deterministic ? ", in order" : ""));
    }
  }
}

TEST_F(EntmaxBackward, HasTheSameBitsEveryTime) {
  const Call calls[] = {
      {"causal", entmax(1.5), DType::bf16, 4, 2, 700, 700},
      {"window(2) | sinks(1)", softmax(8), DType::f32, 4, 1, 2500, 2500, 32, 32},
      {"dense", entmax(1.5, 20), DType::f32, 4, 1, 900, 40, 64, 64, 0, true, true},  // busy keys
  };
  for (const Call& call : calls) {
    Problem problem(call);
    problem.prepare();
    for (const Supports supports : {Supports::all, Supports::some}) {
      problem.run(supports, true);
      const auto first = problem.results();
      for (int again = 0; again < 5; ++again) {
        problem.run(supports, true);
        EXPECT_EQ(problem.results(), first) << to_string(call);
      }
    }
  }
}

}  // namespace
}  // namespace keyhole::test
