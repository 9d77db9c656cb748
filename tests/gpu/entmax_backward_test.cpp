// tests/gpu/entmax_backward_test.cpp
// The backward pass of entmax and top_k on a GPU, against that of the CPU on the same numbers: from
// a support, from a support that some rows have not, and from none. Lambda and the support come
// from the CPU, so nothing here depends on a forward pass of the GPU.
#include <algorithm>
#include <cmath>
#include <limits>

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
  // Of the two batch entries: every so many queries are nearly 0, and all their keys have weight.
  int64_t flat_every[2] = {0, 0};
  int64_t nan_query = -1;  // of the first head
  // Of key 0, to which no query may attend.
  bool has_nan_key = false, has_nan_value = false;
  // Not 0: lists of so many entries replace the pattern. Some keys are named often.
  int64_t entries = 0;
};

std::string to_string(const Call& call) {
  return say(call.pattern, ", ", to_string(call.normalizer), ", ", to_string(call.dtype),
             ", heads ", call.heads, "/", call.kv_heads, ", lengths ", call.q_len, "/", call.k_len,
             ", dims ", call.head_dim, "/", call.v_head_dim, ", flat rows 1 of ",
             call.flat_every[0], " and ", call.flat_every[1],
             call.nan_query >= 0 ? ", with a NaN" : "", call.has_nan_key ? ", with a NaN key" : "",
             call.has_nan_value ? ", with a NaN value" : "",
             call.entries > 0 ? say(", ", call.entries, " entries") : "");
}

// Every seventh list names one key again and again, which no other list does.
std::vector<int32_t> draw_entries(const Call& call) {
  Random random(13);
  std::vector<int32_t> entries(size_t(call.q_len * call.entries));
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t query = int64_t(i) / call.entries;
    entries[i] = int32_t(query % 7 == 0 ? call.k_len - 1 - query / 7
                                        : random.between(-1, call.k_len - 2 - call.q_len / 7));
  }
  return entries;
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
    bend_queries();
    if (call.has_nan_key) spoil_first_key(k_, call.head_dim);
    if (call.has_nan_value) spoil_first_key(v_, call.v_head_dim);
    if (call.entries == 0) return;
    entries_ = draw_entries(call);
    const int64_t bytes = int64_t(entries_.size() * sizeof(int32_t));
    gpu_entries_ = GpuMemory(kGpu, bytes);
    gpu_entries_.copy_from_host(entries_.data(), bytes);
    synchronize(kGpu);
  }

  // On the CPU: lambda, the support and the gradients that are wanted.
  void prepare() {
    AttentionOptions options = common_options(Device{});
    attention_forward(q_.on_host(), k_.on_host(), v_.on_host(), lists(Device{}), out_.on_host(),
                      lse_.on_host(), options);
    lse_.gpu.write(lse_.host);
    attention_backward(dout_.on_host(), q_.on_host(), k_.on_host(), v_.on_host(), out_.on_host(),
                       lse_.on_host(), lists(Device{}), gradients(Device{}), options);
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

  void run(Supports supports, bool is_deterministic, const char* backend = "simple") {
    AttentionOptions options = common_options(kGpu);
    options.backend = backend;
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
                       out_.gpu.view(), lse_.gpu.view(), lists(kGpu), gradients(kGpu), options);
    synchronize(kGpu);
  }

  // rounds_weights: before they are multiplied, and gradients of scores likewise.
  void expect_agreement(const std::string& what, bool rounds_weights = false) const {
    expect_near(what + ", dq", dq_, rounds_weights);
    expect_near(what + ", dk", dk_, rounds_weights);
    expect_near(what + ", dv", dv_, rounds_weights);
    if (call_.has_sink) expect_near(what + ", dsink", dsink_, false);
  }
  std::vector<std::vector<float>> results() const {
    std::vector<std::vector<float>> all = {dq_.gpu.read(), dk_.gpu.read(), dv_.gpu.read()};
    if (call_.has_sink) all.push_back(dsink_.gpu.read());  // without one it was filled with NaN
    return all;
  }

 private:
  void bend_queries() {
    const size_t cols = size_t(call_.head_dim);
    for (int64_t row = 0; row < call_.batch * call_.heads * call_.q_len; ++row) {
      const int64_t query = row % call_.q_len, batch = row / call_.q_len / call_.heads;
      const int64_t every = call_.flat_every[batch % 2];
      float* const q = q_.host.data() + size_t(row) * cols;
      if (every > 0 && query % every == every - 1) {
        for (size_t x = 0; x < cols; ++x) q[x] *= 0x1p-10f;
      }
      if (row == call_.nan_query) std::fill_n(q, cols, std::numeric_limits<float>::quiet_NaN());
    }
    q_.gpu.write(q_.host);
    q_.host = q_.gpu.read();
  }
  void spoil_first_key(Both& tensor, int64_t cols) const {
    const size_t of_head = size_t(call_.k_len * cols);
    for (size_t first = 0; first < tensor.host.size(); first += of_head) {
      std::fill_n(tensor.host.begin() + int64_t(first), cols,
                  std::numeric_limits<float>::quiet_NaN());
    }
    tensor.gpu.write(tensor.host);
  }
  Lists lists(Device device) const {
    if (entries_.empty()) return plan_;
    IndexView view(entries_.data(), {1, 1, call_.q_len, call_.entries});
    view.shape[0] = call_.batch, view.strides[0] = 0;  // all batch entries share them
    if (device.kind == Device::Kind::cuda) {
      view.data = gpu_entries_.data();
      view.device = device;
    }
    return view;
  }
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
  void expect_near(const std::string& what, const Both& tensor, bool rounds_weights) const {
    const std::vector<float> got = tensor.gpu.read();
    double largest = 0;
    for (const float want : tensor.host) largest = std::max(largest, double(std::abs(want)));
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = tensor.host[i];
      if (std::isnan(want) && std::isnan(got[i])) continue;
      const double rounding = rounding_of(tensor.gpu.view().dtype);
      // Terms are rounded in any direction: their errors add up to far less than their sizes.
      const double of_terms = rounds_weights ? rounding * largest / 2 : 0;
      const double bound = 1e-4 * largest + 1e-6 + rounding * std::abs(want) + of_terms;
      ASSERT_LE(std::abs(double(got[i]) - want), bound)
          << what << "[" << i << "] is " << got[i] << ", not " << want;
    }
  }

  Call call_;
  Plan plan_;
  Both q_, k_, v_, dout_, out_, lse_, dlse_, sink_, dq_, dk_, dv_, dsink_;
  std::vector<int32_t> support_, entries_;
  GpuMemory gpu_entries_;
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

// Rows with more keys than a support has room for, among others: few, so that the pass makes lists
// of them; and so many that there is no room for these lists, in all units or in some.
const Call kLongCalls[] = {
    {.pattern = "causal",
     .normalizer = entmax(1.5),
     .q_len = 600,
     .k_len = 600,
     .flat_every = {50, 50}},
    {.pattern = "causal",
     .normalizer = entmax(1.5),
     .q_len = 600,
     .k_len = 600,
     .flat_every = {3, 3}},
    {.pattern = "causal",
     .normalizer = entmax(1.5),
     .dtype = DType::bf16,
     .heads = 4,
     .kv_heads = 2,
     .q_len = 600,
     .k_len = 600,
     .flat_every = {50, 3}},
    // One list is longer than a CTA stages.
    {.pattern = "causal",
     .normalizer = entmax(1.5),
     .dtype = DType::f16,
     .heads = 6,
     .kv_heads = 2,
     .q_len = 2000,
     .k_len = 2000,
     .head_dim = 128,
     .v_head_dim = 96,
     .flat_every = {1999, 0}},
    {.pattern = "dense",
     .normalizer = entmax(2),
     .q_len = 130,
     .k_len = 100,
     .has_dlse = true,
     .flat_every = {40, 20}},
    {.pattern = "causal",
     .normalizer = entmax(1.5, 100),
     .q_len = 300,
     .k_len = 300,
     .softcap = 4,
     .has_sink = true,
     .has_dlse = true,
     .flat_every = {40, 5}},
    {.pattern = "window(40) | sinks(60)",
     .normalizer = softmax(70),
     .dtype = DType::bf16,
     .heads = 4,
     .q_len = 200,
     .k_len = 200,
     .head_dim = 40,
     .v_head_dim = 17},
    {.pattern = "strided(8)",
     .normalizer = entmax(1.5),
     .q_len = 700,
     .k_len = 700,
     .flat_every = {100, 0}},
    {.pattern = "dense",
     .normalizer = entmax(1.5),
     .heads = 4,
     .kv_heads = 2,
     .q_len = 140,
     .k_len = 180,
     .flat_every = {20, 9},
     .entries = 100},
    // One row names a key more often than a slot has numbers.
    {.pattern = "dense",
     .normalizer = entmax(1.5),
     .kv_heads = 2,
     .q_len = 140,
     .k_len = 180,
     .entries = 100},
    {.pattern = "dense",
     .normalizer = softmax(20),
     .kv_heads = 2,
     .q_len = 140,
     .k_len = 180,
     .entries = 100},
    // What has a NaN is followed over the plan, and the long rows by their lists.
    {.pattern = "causal",
     .normalizer = entmax(1.5),
     .q_len = 400,
     .k_len = 400,
     .flat_every = {50, 50},
     .nan_query = 90},
};

// Query tiles in which many rows are long: a backend may multiply tiles.
const Call kTiledCalls[] = {
    {.pattern = "causal",
     .normalizer = entmax(1.25),
     .dtype = DType::bf16,
     .q_len = 700,
     .k_len = 700},
    {.pattern = "causal",
     .normalizer = entmax(1.25),
     .dtype = DType::f16,
     .heads = 6,
     .kv_heads = 2,
     .q_len = 500,
     .k_len = 800,
     .head_dim = 128,
     .v_head_dim = 96,
     .has_sink = true,
     .has_dlse = true},
    {.pattern = "causal",
     .normalizer = entmax(1.1),
     .dtype = DType::bf16,
     .heads = 4,
     .kv_heads = 2,
     .q_len = 300,
     .k_len = 300,
     .head_dim = 40,
     .v_head_dim = 64,
     .has_sink = true},
    {.pattern = "dense",
     .normalizer = entmax(1.1),
     .dtype = DType::f16,
     .q_len = 333,
     .k_len = 555,
     .head_dim = 128,
     .v_head_dim = 128,
     .has_dlse = true},
    // Other powers: by logarithms, and by one multiplication.
    {.pattern = "dense",
     .normalizer = entmax(4. / 3),
     .dtype = DType::bf16,
     .q_len = 200,
     .k_len = 600,
     .flat_every = {1, 2}},
    {.pattern = "dense",
     .normalizer = entmax(1.5),
     .dtype = DType::bf16,
     .q_len = 400,
     .k_len = 520,
     .head_dim = 128,
     .v_head_dim = 128,
     .flat_every = {1, 1}},
    {.pattern = "dense",
     .normalizer = entmax(2),
     .dtype = DType::f16,
     .q_len = 300,
     .k_len = 130,
     .has_dlse = true,
     .flat_every = {1, 1}},
    // Some rows of a tile are long: enough of them, and too few.
    {.pattern = "causal",
     .normalizer = entmax(1.5),
     .dtype = DType::bf16,
     .heads = 4,
     .kv_heads = 2,
     .q_len = 600,
     .k_len = 600,
     .has_sink = true,
     .flat_every = {3, 40}},
    // Residue classes.
    {.pattern = "dilated(3) & causal",
     .normalizer = entmax(1.25),
     .dtype = DType::bf16,
     .q_len = 1000,
     .k_len = 1000},
    {.pattern = "dilated(4)",
     .normalizer = entmax(1.5),
     .dtype = DType::f16,
     .q_len = 900,
     .k_len = 1100,
     .head_dim = 128,
     .v_head_dim = 64,
     .flat_every = {2, 1}},
    // What is not finite reaches those alone that attend to it.
    {.pattern = "causal & ~sinks(1)",
     .normalizer = entmax(1.25),
     .dtype = DType::bf16,
     .q_len = 400,
     .k_len = 400,
     .has_nan_value = true},
    {.pattern = "causal & ~sinks(1)",
     .normalizer = entmax(1.25),
     .dtype = DType::f16,
     .q_len = 400,
     .k_len = 400,
     .head_dim = 128,
     .v_head_dim = 128,
     .has_nan_key = true},
    {.pattern = "causal",
     .normalizer = entmax(1.25),
     .dtype = DType::bf16,
     .q_len = 400,
     .k_len = 400,
     .nan_query = 90},
};

void expect_agreement_with_every_support(const Call& call) {
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

TEST_F(EntmaxBackward, AgreesWithTheCpu) {
  for (const Call& call : kCalls) expect_agreement_with_every_support(call);
}

TEST_F(EntmaxBackward, LongRowsAgreeWithTheCpu) {
  for (const Call& call : kLongCalls) expect_agreement_with_every_support(call);
}

TEST_F(EntmaxBackward, TiledRowsAgreeWithTheCpu) {
  if (gpu(kGpu).compute_capability != 90) GTEST_SKIP() << "no backend here multiplies tiles";
  for (const Call& call : kTiledCalls) {
    Problem problem(call);
    problem.prepare();
    ASSERT_GT(problem.longest_support(), kSupportKeys) << to_string(call);
    for (const Supports supports : {Supports::all, Supports::some}) {
      problem.run(supports, false, "sm90");
      problem.expect_agreement(
          say(to_string(call), ", support of ", kSupportNames[size_t(supports)]), true);
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
  std::vector<Call> calls = {
      {"causal", entmax(1.5), DType::bf16, 4, 2, 700, 700},
      {"window(2) | sinks(1)", softmax(8), DType::f32, 4, 1, 2500, 2500, 32, 32},
      {"dense", entmax(1.5, 20), DType::f32, 4, 1, 900, 40, 64, 64, 0, true, true},  // busy keys
  };
  for (const Call& call : kLongCalls) {
    if (call.nan_query < 0) calls.push_back(call);  // a NaN is not equal to itself
  }
  for (const Call& call : calls) {
    Problem problem(call);
    problem.prepare();
    for (const Supports supports : {Supports::all, Supports::some, Supports::none}) {
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
