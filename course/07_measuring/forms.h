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
  const float *const q = head.q.data(), *const k = head.k.data(), *const v = head.v.data();
  for (int64_t i = 0; i < length; ++i) {
    float* row = weights.data() + i * length;
    for (int64_t j = 0; j < length; ++j) {
      float sum = 0;
      for (int64_t d = 0; d < kDim; ++d) sum += q[i * kDim + d] * k[j * kDim + d];
      row[j] = sum * kScale;
    }
  }
  for (int64_t i = 0; i < length; ++i) {
    float* row = weights.data() + i * length;
    const float highest = *std::max_element(row, row + length);
    float sum = 0;
    for (int64_t j = 0; j < length; ++j) sum += row[j] = std::exp(row[j] - highest);
    for (int64_t j = 0; j < length; ++j) row[j] /= sum;
  }
  std::fill(out.begin(), out.end(), 0.0f);
  for (int64_t i = 0; i < length; ++i) {
    const float* row = weights.data() + i * length;
    float* o = out.data() + i * kDim;
    for (int64_t j = 0; j < length; ++j)
      for (int64_t d = 0; d < kDim; ++d) o[d] += row[j] * v[j * kDim + d];
  }
}

// 64 queries and 64 keys at a time. A tile of keys is transposed first: then the inner loops run
// over neighbours, and the compiler computes several scores at once.
inline void flash(const Head& head, Values& out) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  float keys[kDim][kTile], weights[kTile];
  std::fill(out.begin(), out.end(), 0.0f);
  for (int64_t first_q = 0; first_q < head.length; first_q += kTile) {
    float highest[kTile], sum[kTile] = {};
    std::fill(highest, highest + kTile, kLowest);
    for (int64_t first_k = 0; first_k < head.length; first_k += kTile) {
      const float* const k = head.k.data() + first_k * kDim;
      const float* const v = head.v.data() + first_k * kDim;
      for (int64_t j = 0; j < kTile; ++j)
        for (int64_t d = 0; d < kDim; ++d) keys[d][j] = k[j * kDim + d] * kScale;
      for (int64_t i = 0; i < kTile; ++i) {
        const float* q = head.q.data() + (first_q + i) * kDim;
        float* o = out.data() + (first_q + i) * kDim;
        std::fill(weights, weights + kTile, 0.0f);
        for (int64_t d = 0; d < kDim; ++d)
          for (int64_t j = 0; j < kTile; ++j) weights[j] += q[d] * keys[d][j];
        const float before = highest[i];
        highest[i] = std::max(before, *std::max_element(weights, weights + kTile));
        const float shrink = std::exp(before - highest[i]);  // 0 for the first tile
        sum[i] *= shrink;
        for (int64_t d = 0; d < kDim; ++d) o[d] *= shrink;
        for (int64_t j = 0; j < kTile; ++j) {
          const float weight = std::exp(weights[j] - highest[i]);
          sum[i] += weight;
          for (int64_t d = 0; d < kDim; ++d) o[d] += weight * v[j * kDim + d];
        }
      }
    }
    for (int64_t i = 0; i < kTile; ++i)
      for (int64_t d = 0; d < kDim; ++d) out[(first_q + i) * kDim + d] /= sum[i];
  }
}

}  // namespace course
