// tests/gpu/entmax_test.cpp
// Entmax and top_k on a GPU, through the public functions, against the cpu backend: key lists,
// plans of several parts, rows with more keys of weight than a list has room for, ties, what is not
// finite, and the support. tests/kernels has the rest.
#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu/gpu_problem.h"

namespace keyhole::test {
namespace {

using GpuEntmax = GpuTest;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Results {
  std::vector<float> out, lse;
  std::vector<int32_t> support;
};

// The same numbers on both sides, in fp32.
struct TwoSides {
  int64_t heads = 2, kv_heads = 1, q_len = 40, k_len = 300, head_dim = 24, v_head_dim = 40;
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
  }

  // memory(numbers): a pointer to them on the device.
  template <class Memory>
  void call(Device device, const Lists& lists, const Memory& memory, Results& to) const {
    const auto view = [&](void* data, std::initializer_list<int64_t> shape) {
      TensorView tensor(data, DType::f32, shape);
      tensor.device = device;
      return tensor;
    };
    AttentionOptions with = options;
    if (!sink.empty()) with.sink = view(memory(sink), {heads});
    with.support =
        IndexView(static_cast<int32_t*>(memory(to.support)), {1, heads, q_len, kSupportKeys});
    with.support.device = device;
    attention_forward(view(memory(q), {1, heads, q_len, head_dim}),
                      view(memory(k), {1, kv_heads, k_len, head_dim}),
                      view(memory(v), {1, kv_heads, k_len, v_head_dim}), lists,
                      view(memory(to.out), {1, heads, q_len, v_head_dim}),
                      view(memory(to.lse), {1, heads, q_len}), with);
  }
  Results no_results() const {
    return {std::vector<float>(size_t(heads * q_len * v_head_dim), -7),
            std::vector<float>(size_t(heads * q_len), -7),
            std::vector<int32_t>(size_t(heads * q_len * kSupportKeys), -7)};
  }
  Results on_cpu(const Lists& lists) const {
    Results results = no_results();
    call(
        {}, lists,
        [](auto& numbers) { return const_cast<void*>(static_cast<const void*>(numbers.data())); },
        results);
    return results;
  }
  Results on_gpu(const Lists& lists) const {
    Results results = no_results();
    std::vector<GpuMemory> all;
    std::vector<std::pair<size_t, void*>> back;
    const auto memory = [&](auto& numbers) {
      const int64_t bytes = int64_t(numbers.size() * sizeof(numbers[0]));
      all.emplace_back(kGpu, bytes);
      all.back().copy_from_host(numbers.data(), bytes);
      synchronize(kGpu);
      using Numbers = std::remove_reference_t<decltype(numbers)>;
      if constexpr (!std::is_const_v<Numbers>) back.emplace_back(all.size() - 1, numbers.data());
      return all.back().data();
    };
    call(kGpu, lists, memory, results);
    for (const auto& [place, to] : back) all[place].copy_to_host(to, all[place].bytes());
    return results;
  }

  void expect_agreement(const Lists& for_cpu, const Lists& for_gpu) const {
    const Results want = on_cpu(for_cpu), got = on_gpu(for_gpu);
    const auto is_near = [](float a, float b, float tolerance) {
      return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= tolerance;
    };
    for (size_t row = 0; row < want.lse.size(); ++row) {
      SCOPED_TRACE("row " + std::to_string(row));
      const float size = 1 + std::abs(want.lse[row]);
      EXPECT_TRUE(is_near(got.lse[row], want.lse[row], 4e-6f * size))
          << got.lse[row] << " and " << want.lse[row];
      for (size_t x = 0; x < size_t(v_head_dim); ++x) {
        const size_t at = row * size_t(v_head_dim) + x;
        EXPECT_TRUE(is_near(got.out[at], want.out[at], 2e-5f))
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
      SCOPED_TRACE(to_string(normalizer) + ", " + std::to_string(strange));
      TwoSides sides;
      sides.q_len = sides.k_len = 70, sides.v_head_dim = 8;
      sides.draw(10, /*whole=*/false);
      sides.sink[1] = strange;
      sides.options.normalizer = normalizer;
      for (int64_t x = 0; x < sides.head_dim; ++x) {
        if (x % 5 == 0) sides.k[size_t(60 * sides.head_dim + x)] = strange;
      }
      const Plan made = plan(parse("causal"), Shape{1, sides.heads, sides.q_len, sides.k_len, {}});
      sides.expect_agreement(made, made);
    }
  }
}

}  // namespace
}  // namespace keyhole::test
