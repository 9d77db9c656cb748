// course/02_flash_minimal/flash.cpp
// FlashAttention's forward pass: tiles of queries x keys and online softmax. Compared with the
// definition in fp64 and with Keyhole; then what it needs beside q, k, v and out.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "common/tensors.h"

namespace {

constexpr size_t kHeadDim = 64, kTileQ = 32, kTileK = 64;

// All that one tile of queries needs. It does not depend on the length of the sequence, so a GPU
// can keep it in registers and shared memory.
struct TileState {
  float scores[kTileQ][kTileK];  // of one tile of keys; then its weights
  float max[kTileQ], sum[kTileQ], out[kTileQ][kHeadDim];
};

// q [length, d], k and v [length, d] -> out [length, d], lse [length].
void flash(const float* q, const float* k, const float* v, size_t length, float* out, float* lse) {
  const float scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
  static TileState state;
  for (size_t first_q = 0; first_q < length; first_q += kTileQ) {  // on a GPU: one CTA each
    const size_t queries = std::min(kTileQ, length - first_q);
    for (size_t i = 0; i < queries; ++i) {
      state.max[i] = -std::numeric_limits<float>::infinity();
      state.sum[i] = 0;
      std::fill_n(state.out[i], kHeadDim, 0.0f);
    }
    for (size_t first_k = 0; first_k < length; first_k += kTileK) {  // the mainloop
      const size_t keys = std::min(kTileK, length - first_k);
      for (size_t i = 0; i < queries; ++i) {
        float* row = state.scores[i];
        // Scores of this tile, and their maximum.
        float max = state.max[i];
        for (size_t j = 0; j < keys; ++j) {
          float product = 0;
          for (size_t x = 0; x < kHeadDim; ++x) {
            product += q[(first_q + i) * kHeadDim + x] * k[(first_k + j) * kHeadDim + x];
          }
          row[j] = scale * product;
          max = std::max(max, row[j]);
        }
        // What was summed with the old maximum is rescaled to the new one.
        const float factor = std::exp(state.max[i] - max);
        state.max[i] = max;
        state.sum[i] *= factor;
        for (size_t x = 0; x < kHeadDim; ++x) state.out[i][x] *= factor;
        // Weights of this tile, not yet divided by the sum of the row, which nobody knows yet.
        for (size_t j = 0; j < keys; ++j) {
          const float weight = std::exp(row[j] - max);
          state.sum[i] += weight;
          for (size_t x = 0; x < kHeadDim; ++x) {
            state.out[i][x] += weight * v[(first_k + j) * kHeadDim + x];
          }
        }
      }
    }
    for (size_t i = 0; i < queries; ++i) {  // the epilogue
      for (size_t x = 0; x < kHeadDim; ++x) {
        out[(first_q + i) * kHeadDim + x] = state.out[i][x] / state.sum[i];
      }
      lse[first_q + i] = state.max[i] + std::log(state.sum[i]);
    }
  }
}

// The definition in fp64: out and lse of every row.
void definition(const std::vector<float>& q, const std::vector<float>& k,
                const std::vector<float>& v, size_t length, std::vector<double>& out,
                std::vector<double>& lse) {
  out.assign(length * kHeadDim, 0);
  lse.assign(length, 0);
  std::vector<double> weights(length);
  for (size_t i = 0; i < length; ++i) {
    double sum = 0;
    for (size_t j = 0; j < length; ++j) {
      double product = 0;
      for (size_t x = 0; x < kHeadDim; ++x) {
        product += static_cast<double>(q[i * kHeadDim + x]) * k[j * kHeadDim + x];
      }
      // The scores of this program are small: fp64 needs no maximum for them.
      weights[j] = std::exp(product / std::sqrt(static_cast<double>(kHeadDim)));
      sum += weights[j];
    }
    for (size_t j = 0; j < length; ++j) {
      for (size_t x = 0; x < kHeadDim; ++x) {
        out[i * kHeadDim + x] += weights[j] / sum * v[j * kHeadDim + x];
      }
    }
    lse[i] = std::log(sum);
  }
}

}  // namespace

int main() {
  const size_t length = 333;  // not a multiple of the tiles
  const std::vector<float> q = course::random_values(length * kHeadDim, 1);
  const std::vector<float> k = course::random_values(length * kHeadDim, 2);
  const std::vector<float> v = course::random_values(length * kHeadDim, 3);
  std::vector<float> out(q.size()), lse(length), keyhole_out(q.size()), keyhole_lse(length);
  std::vector<double> exact_out, exact_lse;
  flash(q.data(), k.data(), v.data(), length, out.data(), lse.data());
  definition(q, k, v, length, exact_out, exact_lse);

  using namespace keyhole;
  const auto view = [&](const std::vector<float>& x) {
    return TensorView(x.data(), DType::f32, {1, 1, int64_t(length), int64_t(kHeadDim)});
  };
  attention_forward(view(q), view(k), view(v), plan(dense(), int64_t(length), int64_t(length)),
                    view(keyhole_out),
                    TensorView(keyhole_lse.data(), DType::f32, {1, 1, int64_t(length)}));

  std::printf("%zu tokens in tiles of %zu queries x %zu keys: largest difference\n", length, kTileQ,
              kTileK);
  std::printf("  from the definition in fp64: out %.1e, lse %.1e\n",
              course::largest_difference(out, exact_out),
              course::largest_difference(lse, exact_lse));
  std::printf("  from keyhole:                out %.1e, lse %.1e\n\n",
              course::largest_difference(out, keyhole_out),
              course::largest_difference(lse, keyhole_lse));

  // Memory beside q, k, v and out, for one head in fp32. lse is kept for the backward pass.
  std::printf("%7s %12s %11s %8s\n", "length", "weights_kib", "state_kib", "lse_kib");
  for (size_t tokens = 512; tokens <= 131072; tokens *= 4) {
    std::printf("%7zu %12zu %11.2f %8.0f\n", tokens, tokens * tokens * sizeof(float) / 1024,
                sizeof(TileState) / 1024.0, static_cast<double>(tokens) * sizeof(float) / 1024.0);
  }
}
