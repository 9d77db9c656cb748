// cli/measured_support.cpp
// Values that are rows of a unit matrix turn the result into the weights, some keys at a time.
#include "cli/measured_support.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/random.h"
#include "keyhole/attention.h"

namespace keyhole::cli {

KeptPairs measured_support(const Pattern& pattern, const Shape& shape, int64_t batch, int64_t head,
                           const Normalizer& normalizer, int64_t head_dim, int64_t seed) {
  constexpr int64_t kMostKeys = 512;  // at a time: the width of a value
  const int64_t q_len = shape.q_len, k_len = shape.k_len;
  const Pattern of_head(pattern.for_head(shape, batch, head).node());
  const Plan made = plan(of_head, {.q_len = q_len, .k_len = k_len, .offset = shape.q_offset()});
  Random random{uint64_t(seed)};
  const auto normals = [&](int64_t count) {
    std::vector<float> numbers(static_cast<size_t>(count));
    for (float& number : numbers) {
      const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
      number = float(radius * std::cos(2 * std::numbers::pi * random.uniform()));
    }
    return numbers;
  };
  const std::vector<float> q = normals(q_len * head_dim), k = normals(k_len * head_dim);
  const TensorView q_view(q.data(), DType::f32, {1, 1, q_len, head_dim});
  const TensorView k_view(k.data(), DType::f32, {1, 1, k_len, head_dim});
  AttentionOptions options;
  options.normalizer = normalizer;
  options.backend = "cpu";

  KeptPairs kept{to_string(normalizer), say("normal q and k, head_dim ", head_dim, ", seed ", seed),
                 std::vector<std::vector<int32_t>>(static_cast<size_t>(q_len))};
  for (int64_t first = 0; first < k_len; first += kMostKeys) {
    const int64_t count = std::min(kMostKeys, k_len - first);
    std::vector<float> v(size_t(k_len * count)), weights(size_t(q_len * count));
    for (int64_t i = 0; i < count; ++i) v[size_t((first + i) * count + i)] = 1;
    attention_forward(q_view, k_view, {v.data(), DType::f32, {1, 1, k_len, count}}, made,
                      {weights.data(), DType::f32, {1, 1, q_len, count}}, {}, options);
    for (int64_t query = 0; query < q_len; ++query) {
      for (int64_t i = 0; i < count; ++i) {
        if (weights[size_t(query * count + i)] > 0)
          kept.keys[size_t(query)].push_back(int32_t(first + i));
      }
    }
  }
  return kept;
}

}  // namespace keyhole::cli
