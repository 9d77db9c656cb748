// tests/gpu/entmax_test.cpp
// Entmax and top_k on a GPU, through the public functions, against the cpu backend: key lists,
// plans of several parts, rows with more keys of weight than a list has room for, rows that a scan
// leaves alone, ties, what is not finite, and the support. tests/kernels has the rest.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/dtype.h"
#include "gpu/gpu_problem.h"
#include "kernels/device/entmax_forward_call.h"

namespace keyhole::test {
namespace {

using GpuEntmax = GpuTest;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Results {
  std::vector<float> out, lse;
  std::vector<int32_t> support;
};

// The same numbers on both sides. The CPU computes in fp32.
struct TwoSides {
  int64_t heads = 2, kv_heads = 1, q_len = 40, k_len = 300, head_dim = 24, v_head_dim = 40;
  DType dtype = DType::f32;  // on the GPU
  std::vector<float> q, k, v, sink;
  AttentionOptions options;

  // whole: scores are small whole numbers, many of them equal.
  void draw(uint64_t seed, bool whole) {
    Random random(seed);
    const auto fill = [&](std::vector<float>& values, int64_t count) {
      values.resize(size_t(count));
      for (float& x : values) x = float(whole ? double(random.between(-1, 1)) : random.normal());
    };
    fill(q, heads * q_len * head_dim), fill(k, kv_heads * k_len * head_dim);
    fill(v, kv_heads * k_len * v_head_dim), fill(sink, heads);
    round();
  }
  // To what the GPU's dtype can hold. After changes to what was drawn.
  void round() {
    with_storage(dtype, [&](auto storage) {
      for (std::vector<float>* numbers : {&q, &k, &v}) {
        for (float& x : *numbers) x = float(to_f32(Traits<decltype(storage)>::from(x)));
      }
    });
  }

  // tensor(numbers, dtype, shape): a view of them on the device.
  template <class Tensor>
  void call(const Lists& lists, const IndexView& support, const Tensor& tensor, Results& to) const {
    AttentionOptions with = options;
    if (!sink.empty()) with.sink = tensor(sink, DType::f32, {heads});
    with.support = support;
    attention_forward(tensor(q, dtype, {1, heads, q_len, head_dim}),
                      tensor(k, dtype, {1, kv_heads, k_len, head_dim}),
                      tensor(v, dtype, {1, kv_heads, k_len, v_head_dim}), lists,
                      tensor(to.out, dtype, {1, heads, q_len, v_head_dim}),
                      tensor(to.lse, DType::f32, {1, heads, q_len}), with);
  }
  Results no_results() const {
    return {std::vector<float>(size_t(heads * q_len * v_head_dim), -7),
            std::vector<float>(size_t(heads * q_len), -7),
            std::vector<int32_t>(size_t(heads * q_len * kSupportKeys), -7)};
  }
  IndexView support_at(void* memory) const {
    return {static_cast<int32_t*>(memory), {1, heads, q_len, kSupportKeys}};
  }
  Results on_cpu(const Lists& lists) const {
    Results results = no_results();
    const auto tensor = [](auto& numbers, DType, std::initializer_list<int64_t> shape) {
      return TensorView(numbers.data(), DType::f32, shape);
    };
    call(lists, support_at(results.support.data()), tensor, results);
    return results;
  }
  Results on_gpu(const Lists& lists) const {
    Results results = no_results();
    const GpuMemory keys(kGpu, int64_t(results.support.size() * sizeof(int32_t)));
    keys.copy_from_host(results.support.data(), keys.bytes());
    synchronize(kGpu);
    IndexView support = support_at(keys.data());
    support.device = kGpu;
    std::vector<GpuTensor> all;
    std::vector<std::pair<size_t, std::vector<float>*>> back;
    const auto tensor = [&](auto& numbers, DType type, std::initializer_list<int64_t> shape) {
      all.emplace_back(type, shape);
      all.back().write(numbers);
      using Numbers = std::remove_reference_t<decltype(numbers)>;
      if constexpr (!std::is_const_v<Numbers>) back.emplace_back(all.size() - 1, &numbers);
      return all.back().view();
    };
    call(lists, support, tensor, results);
    for (const auto& [place, numbers] : back) *numbers = all[place].read();
    keys.copy_to_host(results.support.data(), keys.bytes());
    return results;
  }

  void expect_agreement(const Lists& for_cpu, const Lists& for_gpu) const {
    expect_agreement(on_cpu(for_cpu), on_gpu(for_gpu));
  }
  void expect_agreement(const Results& want, const Results& got) const {
    const auto is_near = [](float a, float b, float tolerance) {
      return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= tolerance;
    };
    // 16 bits: out is rounded to them, and sums on tensor cores lose a little more.
    const bool is_f32 = dtype == DType::f32;
    const float of_lse = is_f32 ? 4e-6f : 2e-5f, of_out = is_f32 ? 2e-5f : 1e-4f;
    const float unit = is_f32 ? 0.f : dtype == DType::f16 ? 0x1p-10f : 0x1p-8f;
    for (size_t row = 0; row < want.lse.size(); ++row) {
      SCOPED_TRACE("row " + std::to_string(row));
      const float size = 1 + std::abs(want.lse[row]);
      EXPECT_TRUE(is_near(got.lse[row], want.lse[row], of_lse * size))
          << got.lse[row] << " and " << want.lse[row];
      // Over tiles, each weight is rounded, too: by half a unit; values are up to 4.
      const bool is_long = got.support[row * kSupportKeys] == kLongSupport;
      const float of_weights = is_long ? 2 * unit : 0;
      for (size_t x = 0; x < size_t(v_head_dim); ++x) {
        const size_t at = row * size_t(v_head_dim) + x;
        EXPECT_TRUE(
            is_near(got.out[at], want.out[at], of_out + of_weights + unit * std::abs(want.out[at])))
            << got.out[at] << " and " << want.out[at] << " in column " << x;
      }
      expect_support(row, want, got);
      if (::testing::Test::HasFailure()) return;
    }
  }

  // Keys that have next to no weight may be in one of the two alone.
  void expect_support(size_t row, const Results& want, const Results& got) const {
    const auto keys_of = [&](const Results& results) {
      const int32_t* const begin = results.support.data() + row * kSupportKeys;
      return std::vector<int32_t>(begin, std::find(begin, begin + kSupportKeys, -1));
    };
    const std::vector<int32_t> a = keys_of(want), b = keys_of(got);
    const auto is_long = [](const auto& keys) { return !keys.empty() && keys[0] == kLongSupport; };
    // In 16 bits, rows beside many long ones have no list either.
    if (is_long(b) && dtype != DType::f32) return;
    if (is_long(a) || is_long(b)) {
      EXPECT_TRUE(is_long(a) && is_long(b)) << a.size() << " and " << b.size() << " keys";
      return;
    }
    EXPECT_TRUE(std::is_sorted(b.begin(), b.end()));
    for (size_t i = b.size(); i < size_t(kSupportKeys); ++i) {
      EXPECT_EQ(got.support[row * kSupportKeys + i], -1);
    }
    std::vector<int32_t> differing;
    std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(),
                                  std::back_inserter(differing));
    for (const int32_t key : differing) {
      EXPECT_LT(weight_of(row, key, want.lse[row]), 1e-5) << "key " << key;
    }
  }
  double weight_of(size_t row, int32_t key, double lambda) const {
    const int64_t head = int64_t(row) / q_len, kv_head = head / (heads / kv_heads);
    double product = 0;
    for (int64_t x = 0; x < head_dim; ++x) {
      product += double(q[row * size_t(head_dim) + size_t(x)]) *
                 double(k[size_t((kv_head * k_len + key) * head_dim + x)]);
    }
    double score = product * options.scale.value_or(1 / std::sqrt(double(head_dim)));
    if (options.softcap > 0) score = options.softcap * std::tanh(score / options.softcap);
    const double bend = options.normalizer.alpha - 1;
    if (bend == 0) return std::exp(score - lambda);
    return std::pow(std::max(0., 1 + bend * (score - lambda)), 1 / bend);
  }
};

// Of whole numbers: a power of two keeps equal scores equal, whatever a kernel multiplies by it.
constexpr double kExactScale = 0.0625;

const Normalizer kNormalizers[] = {entmax(1.5),    entmax(2),    entmax(1.25), entmax(1.05),
                                   entmax(1.5, 3), softmax(100), softmax(5),   entmax(1.1, 70)};

TEST_F(GpuEntmax, PlansOfAllForms) {
  for (const char* text : {"dense", "causal & window(50)", "strided(8)", "random(1, 16, 3)",
                           "window(20) | random(1, 16, 3)", "~dense", "dilated(3) & causal"}) {
    for (const Normalizer& normalizer : kNormalizers) {
      for (const bool whole : {false, true}) {
        SCOPED_TRACE(std::string(text) + ", " + to_string(normalizer) + (whole ? ", whole" : ""));
        TwoSides sides;
        sides.q_len = sides.k_len = 150;
        sides.draw(5, whole);
        sides.options.normalizer = normalizer;
        if (whole) sides.options.scale = kExactScale;
        const Plan made = plan(parse(text), Shape{1, sides.heads, sides.q_len, sides.k_len, {}});
        sides.expect_agreement(made, made);
      }
    }
  }
}

TEST_F(GpuEntmax, ScalesCapsAndSinks) {
  for (const double scale : {1., 0., -0.3}) {
    for (const double softcap : {0., 2.}) {
      for (const Normalizer& normalizer : kNormalizers) {
        SCOPED_TRACE(std::to_string(scale) + ", " + std::to_string(softcap) + ", " +
                     to_string(normalizer));
        TwoSides sides;
        sides.draw(6, /*whole=*/false);
        if (softcap == 0) sides.sink.clear();
        sides.options.normalizer = normalizer;
        sides.options.scale = scale, sides.options.softcap = softcap;
        const Plan made = plan(parse("dense"), Shape{1, sides.heads, sides.q_len, sides.k_len, {}});
        sides.expect_agreement(made, made);
      }
    }
  }
}

TEST_F(GpuEntmax, KeysThatAreNamedTwiceCountTwice) {
  for (const Normalizer& normalizer : kNormalizers) {
    SCOPED_TRACE(to_string(normalizer));
    TwoSides sides;
    sides.draw(7, /*whole=*/true);
    sides.options.normalizer = normalizer;
    sides.options.scale = kExactScale;
    constexpr int64_t kEntries = 130;
    Random random(8);
    std::vector<int32_t> entries(size_t(sides.q_len * kEntries));
    for (int32_t& key : entries) key = int32_t(random.between(-1, 90));
    const GpuMemory memory(kGpu, int64_t(entries.size() * 4));
    memory.copy_from_host(entries.data(), memory.bytes());
    synchronize(kGpu);
    const IndexView here(entries.data(), {1, 1, sides.q_len, kEntries});
    IndexView there = here;
    there.data = memory.data(), there.device = kGpu;
    sides.expect_agreement(here, there);
  }
}

// More keys of weight than a list on the GPU has room for.
TEST_F(GpuEntmax, LongRows) {
  for (const Normalizer& normalizer :
       {entmax(1.5), entmax(2), entmax(1.05), entmax(1.3), softmax(5000), entmax(1.5, 4500),
        softmax(9), entmax(1.01, 6000), entmax(1.25, 64), entmax(1.25, 65)}) {
    for (const double scale : {0., 0.001, kExactScale}) {
      SCOPED_TRACE(to_string(normalizer) + ", scale " + std::to_string(scale));
      TwoSides sides;
      sides.q_len = 3, sides.k_len = 9000;
      sides.draw(9, /*whole=*/scale == kExactScale);
      sides.options.normalizer = normalizer, sides.options.scale = scale;
      const Plan made = plan(parse("dense"), Shape{1, sides.heads, sides.q_len, sides.k_len, {}});
      sides.expect_agreement(made, made);
    }
  }
}

// Attended scores that are NaN or infinite, or exceed the range of fp32; values that are not read.
TEST_F(GpuEntmax, WhatIsNotFinite) {
  for (const Normalizer& normalizer : kNormalizers) {
    for (const float strange : {kNan, kInfinity, -kInfinity, 3e38f, -3e38f}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(to_string(normalizer) + ", " + std::to_string(strange) + ", " +
                     to_string(dtype));
        TwoSides sides;
        sides.q_len = sides.k_len = 70, sides.v_head_dim = 8;
        sides.dtype = dtype;
        sides.draw(10, /*whole=*/false);
        sides.sink[1] = strange;
        sides.options.normalizer = normalizer;
        for (int64_t x = 0; x < sides.head_dim; ++x) {
          if (x % 5 == 0) sides.k[size_t(60 * sides.head_dim + x)] = strange;
        }
        sides.round();
        const Plan made =
            plan(parse("causal"), Shape{1, sides.heads, sides.q_len, sides.k_len, {}});
        sides.expect_agreement(made, made);
      }
    }
  }
}

// Rows among others that have more candidates than a scan has room for. A CTA takes each, or tiles.
struct LeftRows {
  const char* pattern;
  Normalizer normalizer;
  int64_t q_len, k_len;
  DType dtype = DType::bf16;
  int64_t heads = 2, kv_heads = 1, head_dim = 64, v_head_dim = 64;
  double softcap = 0;
  bool has_sink = false, whole = false;
};
const LeftRows kLeftRows[] = {
    {"dense", entmax(1.5), 24, 1000},
    {"causal", entmax(1.5), 1000, 1000},
    {"causal", entmax(1.5), 24, 5000},
    {"causal", entmax(1.5), 24, 5000, DType::f16},
    {"dense", entmax(2), 24, 5000},
    {"dense", entmax(1.25), 24, 5000, DType::f16},
    {"dense", entmax(1.05), 24, 1000},
    {"causal", entmax(1.25), 700, 1500},
    {"causal", entmax(1.25), 700, 700, DType::f16},
    {"causal", entmax(1.1), 500, 500},
    {"causal", entmax(1.4), 500, 500, DType::f16},
    {"causal", entmax(1.7), 500, 900, DType::f16},
    {"causal", entmax(2), 500, 900},
    {"dilated(2) & causal", entmax(1.25), 900, 900},
    {"causal & window(700)", entmax(1.5), 1000, 1000},
    {"dilated(3)", entmax(1.5), 300, 3000},
    {"random(64, 20, 3)", entmax(1.5), 200, 5000},
    {"dense", entmax(1.5, 8), 24, 5000},
    {"causal", entmax(1.25, 64), 24, 5000},
    {"dense", softmax(8), 24, 5000},
    {"dense", softmax(64), 24, 1000},
    {"dense", entmax(1.5, 100), 24, 5000},
    {"dense", softmax(100), 24, 5000},
    {.pattern = "causal",
     .normalizer = entmax(1.5),
     .q_len = 24,
     .k_len = 5000,
     .heads = 8,
     .kv_heads = 2},
    {.pattern = "causal",
     .normalizer = entmax(1.25),
     .q_len = 500,
     .k_len = 600,
     .dtype = DType::f16,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 128,
     .v_head_dim = 72,
     .has_sink = true},
    {.pattern = "causal",
     .normalizer = entmax(1.5),
     .q_len = 24,
     .k_len = 5000,
     .head_dim = 128,
     .v_head_dim = 128},
    {.pattern = "dense",
     .normalizer = entmax(1.5, 8),
     .q_len = 24,
     .k_len = 1000,
     .heads = 4,
     .head_dim = 96,
     .v_head_dim = 40},
    {.pattern = "dense",
     .normalizer = entmax(1.25),
     .q_len = 24,
     .k_len = 1000,
     .head_dim = 40,
     .v_head_dim = 128,
     .has_sink = true},
    {.pattern = "causal",
     .normalizer = entmax(1.5),
     .q_len = 24,
     .k_len = 5000,
     .softcap = 2,
     .has_sink = true},
    {.pattern = "dense", .normalizer = entmax(1.5), .q_len = 24, .k_len = 5000, .whole = true},
    {.pattern = "dense",
     .normalizer = entmax(1.5, 8),
     .q_len = 24,
     .k_len = 5000,
     .has_sink = true,
     .whole = true},
    {.pattern = "causal",
     .normalizer = softmax(64),
     .q_len = 24,
     .k_len = 5000,
     .dtype = DType::f16,
     .whole = true},
    // fp32 is scanned by rounded products.
    {"dense", entmax(1.5), 24, 1000, DType::f32},
    {"causal", entmax(1.5), 1000, 1000, DType::f32},
    {"causal", entmax(1.5), 24, 5000, DType::f32},
    {"dense", entmax(2), 24, 5000, DType::f32},
    {"causal", entmax(1.75), 500, 900, DType::f32},
    {"causal", entmax(1.4), 500, 500, DType::f32},
    {"causal", entmax(1.25), 24, 1500, DType::f32},
    {"dilated(2) & causal", entmax(1.5), 900, 900, DType::f32},
    {"dilated(3)", entmax(1.5), 300, 3000, DType::f32},
    {"random(64, 20, 3)", entmax(1.5), 200, 5000, DType::f32},
    {"dense", entmax(1.5, 8), 24, 5000, DType::f32},
    {"causal", entmax(1.25, 64), 24, 5000, DType::f32},
    {"dense", softmax(8), 24, 5000, DType::f32},
    {"dense", softmax(64), 24, 1000, DType::f32},
    {.pattern = "causal",
     .normalizer = entmax(1.5),
     .q_len = 24,
     .k_len = 5000,
     .dtype = DType::f32,
     .heads = 8,
     .kv_heads = 2,
     .head_dim = 128,
     .v_head_dim = 72,
     .softcap = 2,
     .has_sink = true},
    {.pattern = "dense",
     .normalizer = entmax(1.5),
     .q_len = 200,
     .k_len = 300,
     .dtype = DType::f32,
     .head_dim = 8,
     .v_head_dim = 128,
     .has_sink = true},
    {.pattern = "dense",
     .normalizer = entmax(1.5, 8),
     .q_len = 24,
     .k_len = 5000,
     .dtype = DType::f32,
     .head_dim = 96,
     .v_head_dim = 40,
     .whole = true},
    // More keys than the lists of a CTA have room for.
    {.pattern = "dense",
     .normalizer = entmax(1.5),
     .q_len = 6,
     .k_len = 70000,
     .head_dim = 16,
     .v_head_dim = 8},
};

bool has_scan_of_sm80(DType dtype, const Normalizer& normalizer) {
  const bool has_short_rows =
      normalizer.top_k > 0 || !device::has_long_rows(EntmaxPower::of(normalizer.alpha));
  return gpu(kGpu).compute_capability >= 80 && normalizer.top_k <= kSupportKeys &&
         (dtype != DType::f32 || has_short_rows);
}

// By the kernels of the best backend and by those of sm80: right, and the same bits every time.
void expect_agreement_by_scans(TwoSides sides, const Plan& made) {
  const Results want = sides.on_cpu(made);
  for (const char* backend : {"auto", "sm80"}) {
    SCOPED_TRACE(backend);
    sides.options.backend = backend;
    if (sides.options.backend == "sm80" &&
        !has_scan_of_sm80(sides.dtype, sides.options.normalizer)) {
      continue;
    }
    const Results got = sides.on_gpu(made), again = sides.on_gpu(made);
    sides.expect_agreement(want, got);
    EXPECT_EQ(got.out, again.out);
    EXPECT_EQ(got.lse, again.lse);
    EXPECT_EQ(got.support, again.support);
  }
}

TEST_F(GpuEntmax, RowsThatAScanLeavesAlone) {
  for (const LeftRows& left : kLeftRows) {
    SCOPED_TRACE(std::string(left.pattern) + ", " + to_string(left.normalizer) + ", " +
                 to_string(left.dtype) + ", " + std::to_string(left.q_len) + " queries, " +
                 std::to_string(left.k_len) + " keys, heads of " + std::to_string(left.head_dim) +
                 (left.whole ? ", whole" : ""));
    TwoSides sides;
    sides.heads = left.heads, sides.kv_heads = left.kv_heads;
    sides.q_len = left.q_len, sides.k_len = left.k_len;
    sides.head_dim = left.head_dim, sides.v_head_dim = left.v_head_dim;
    sides.dtype = left.dtype;
    sides.options.normalizer = left.normalizer, sides.options.softcap = left.softcap;
    if (left.whole) sides.options.scale = kExactScale;
    sides.draw(11, left.whole);
    if (!left.has_sink) sides.sink.clear();
    // Of four queries one is zero, so that all its scores are equal. One is near zero, so that all
    // its keys have weight. One sees the keys in two halves, and all scores of a half are equal.
    for (int64_t row = 0; row < sides.heads * sides.q_len; ++row) {
      float* const query = sides.q.data() + row * sides.head_dim;
      const float factor = row % 4 == 0 ? 0.f : row % 4 == 1 ? 0x1p-10f : 1.f;
      for (int64_t x = 0; x < sides.head_dim; ++x) {
        query[x] = row % 4 == 2 ? (x == 0 ? 1.f : 0.f) : factor * query[x];
      }
    }
    for (int64_t key = 0; key < sides.kv_heads * sides.k_len; ++key) {
      sides.k[size_t(key * sides.head_dim)] = float(key % 2);
    }
    sides.round();
    const Plan made =
        plan(parse(left.pattern), Shape{1, sides.heads, sides.q_len, sides.k_len, {}});
    expect_agreement_by_scans(sides, made);
  }
}

// Keys of fp32 that bf16 cannot tell apart, or that make its products useless. All sums are exact
// in fp32: q is whole numbers up to 3, k has 12 binary places. So is the order of equal scores.
struct ConfusedKeys {
  const char* name;
  double scale;
  void (*change)(std::span<float> key, int64_t number, std::span<const float> first);
  bool has_equal_queries = false;  // all ones
};
const ConfusedKeys kConfusedKeys[] = {
    {"12 binary places", 0.125, [](std::span<float>, int64_t, std::span<const float>) {}},
    {"nearly equal", 64,
     [](std::span<float> key, int64_t, std::span<const float> first) {
       for (size_t x = 0; x < key.size(); ++x) {
         key[x] = first[x] + 0x1p-12f * std::floor(key[x] * 8);
       }
     }},
    {"far from 0", 0.25,
     [](std::span<float> key, int64_t, std::span<const float>) {
       for (float& x : key) x += 1;
     }},
    // Of twenty keys that are nearly equal, half is rounded down and half up, in every column.
    {"as far off as can be", 1,
     [](std::span<float> key, int64_t number, std::span<const float>) {
       for (float& x : key) {
         x = number >= 20 ? x / 2 : number % 2 == 0 ? 1 + 15 * 0x1p-12f : 1 + 17 * 0x1p-12f;
       }
     },
     /*has_equal_queries=*/true},
    {"one is 8 times as long", 0.125,
     [](std::span<float> key, int64_t number, std::span<const float>) {
       if (number != 40) return;
       for (float& x : key) x *= 8;
     }},
    {"one is 2^40 times as long", 0.125,
     [](std::span<float> key, int64_t number, std::span<const float>) {
       if (number != 40) return;
       for (float& x : key) x *= 0x1p40f;
     }},
    {"tiny", 0x1p97,
     [](std::span<float> key, int64_t, std::span<const float>) {
       for (float& x : key) x *= 0x1p-100f;
     }},
    {"below the normal numbers", 0x1p124,
     [](std::span<float> key, int64_t, std::span<const float>) {
       for (float& x : key) x *= 0x1p-127f;
     }}};

TEST_F(GpuEntmax, KeysThatRoundingConfuses) {
  for (const ConfusedKeys& confused : kConfusedKeys) {
    for (const Normalizer& normalizer :
         {entmax(1.5), entmax(2), entmax(1.75), entmax(1.5, 8), softmax(5), entmax(1.25, 20)}) {
      for (const int64_t head_dim : {64, 128}) {
        SCOPED_TRACE(std::string(confused.name) + ", " + to_string(normalizer) + ", heads of " +
                     std::to_string(head_dim));
        TwoSides sides;
        sides.heads = 4, sides.kv_heads = 2, sides.q_len = 70, sides.k_len = 900;
        sides.head_dim = sides.v_head_dim = head_dim;
        sides.options.normalizer = normalizer, sides.options.scale = confused.scale;
        sides.draw(12, /*whole=*/false);
        sides.sink.clear();
        Random random(13);
        for (float& x : sides.q) x = float(random.between(-3, 3));
        if (confused.has_equal_queries) std::ranges::fill(sides.q, 1.f);
        for (float& x : sides.k) x = 0x1p-12f * float(random.between(-4096, 4096));
        const std::vector<float> before = sides.k;
        for (int64_t key = 0; key < sides.kv_heads * sides.k_len; ++key) {
          const auto row = [&](auto& numbers, int64_t number) {
            return std::span(numbers).subspan(size_t(number * head_dim), size_t(head_dim));
          };
          confused.change(row(sides.k, key), key % sides.k_len, row(before, 0));
        }
        const Plan made =
            plan(parse("causal"), Shape{1, sides.heads, sides.q_len, sides.k_len, {}});
        expect_agreement_by_scans(sides, made);
      }
    }
  }
}

}  // namespace
}  // namespace keyhole::test
