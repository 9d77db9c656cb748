// course/07_measuring/forms.h
// Attention of one head in two forms, as chapters 1 and 2 explain them: with a matrix of scores in
// memory, and in tiles that stay in the cache.
#pragma once

#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/tensors.h"

namespace course {

using Values = std::vector<float>;
constexpr int64_t kDim = 64, kTile = 64;
constexpr float kScale = 0.125f;  // 1 / sqrt(64)

struct Head {
  explicit Head(int64_t tokens)
      : length(tokens),
        q(random_values(tokens * kDim, 1)),
        k(random_values(tokens * kDim, 2)),
        v(random_values(tokens * kDim, 3)) {}
  int64_t length;  // a multiple of kTile
  Values q, k, v;  // [length, kDim]
};

// What the library takes: a pointer and a shape.
inline keyhole::TensorView view(const Values& values) {
  const int64_t length = static_cast<int64_t>(values.size()) / kDim;
  return {values.data(), keyhole::DType::f32, {1, 1, length, kDim}};
}

// Three steps, and between them `weights`, [length, length], goes through memory.
inline void naive(const Head& head, Values& weights, Values& out) {
  const int64_t length = head.length;
  for (int64_t q = 0; q < length; ++q)
    for (int64_t k = 0; k < length; ++k) {
      float sum = 0;
      for (int64_t d = 0; d < kDim; ++d) sum += head.q[q * kDim + d] * head.k[k * kDim + d];
      weights[q * length + k] = sum * kScale;
    }
  for (int64_t q = 0; q < length; ++q) {
    float* row = &weights[q * length];
    const float highest = *std::max_element(row, row + length);
    float sum = 0;
    for (int64_t k = 0; k < length; ++k) sum += row[k] = std::exp(row[k] - highest);
    for (int64_t k = 0; k < length; ++k) row[k] /= sum;
  }
  std::fill(out.begin(), out.end(), 0.0f);
  for (int64_t q = 0; q < length; ++q)
    for (int64_t k = 0; k < length; ++k)
      for (int64_t d = 0; d < kDim; ++d)
        out[q * kDim + d] += weights[q * length + k] * head.v[k * kDim + d];
}

// 64 queries and 64 keys at a time. A tile of keys is transposed first: then the scores of a query
// are neighbours, and the compiler computes several at once.
inline void flash(const Head& head, Values& out) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float keys[kDim][kTile], weights[kTile];
  std::fill(out.begin(), out.end(), 0.0f);
  for (int64_t first_q = 0; first_q < head.length; first_q += kTile) {
    Values highest(kTile, kLowest), sum(kTile, 0.0f);
    for (int64_t first_k = 0; first_k < head.length; first_k += kTile) {
      for (int64_t k = 0; k < kTile; ++k)
        for (int64_t d = 0; d < kDim; ++d) keys[d][k] = head.k[(first_k + k) * kDim + d] * kScale;
      for (int64_t row = 0; row < kTile; ++row) {
        const float* q = &head.q[(first_q + row) * kDim];
        float* o = &out[(first_q + row) * kDim];
        std::fill(weights, weights + kTile, 0.0f);
        for (int64_t d = 0; d < kDim; ++d)
          for (int64_t k = 0; k < kTile; ++k) weights[k] += q[d] * keys[d][k];
        const float before = highest[row];
        highest[row] = std::max(before, *std::max_element(weights, weights + kTile));
        const float shrink = std::exp(before - highest[row]);  // 0 for the first tile
        sum[row] *= shrink;
        for (int64_t d = 0; d < kDim; ++d) o[d] *= shrink;
        for (int64_t k = 0; k < kTile; ++k) {
          const float weight = std::exp(weights[k] - highest[row]);
          sum[row] += weight;
          for (int64_t d = 0; d < kDim; ++d) o[d] += weight * head.v[(first_k + k) * kDim + d];
        }
      }
    }
    for (int64_t row = 0; row < kTile; ++row)
      for (int64_t d = 0; d < kDim; ++d) out[(first_q + row) * kDim + d] /= sum[row];
  }
}

}  // namespace course
