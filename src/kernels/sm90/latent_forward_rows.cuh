// src/kernels/sm90/latent_forward_rows.cuh
// What the forward pass in latent form (latent_forward_shared.cuh) does with heads, keys, scores
// and rows of the output. A thread has elements of two rows of a warp's 16 (ptx.cuh); its `half` is
// which of them.
#pragma once

#include <cmath>

#include "kernels/device/key_list.cuh"
#include "kernels/mma/ptx.cuh"
#include "kernels/sm90/ptx.cuh"

namespace keyhole::sm90 {

inline constexpr int kLatentHeads = 64, kLatentKeys = 64;  // of a CTA, of a block
inline constexpr int kLatentPanelBytes = 64 * 128;         // of 64 columns

struct LatentGrid {
  int32_t head_blocks;  // of a kv head
};

// Heads of one query that share a list.
struct LatentWork {
  int32_t batch, kv_head, first_head, num_heads;  // first_head: of all query heads
  int64_t query;
};
// index: of a CTA. Those of a query are neighbours: they read the same keys. All of it fits 32
// bits, because the number of CTAs does.
__device__ __forceinline__ LatentWork latent_work(const device::Sizes& sizes,
                                                  const LatentGrid& grid, uint32_t index) {
  constexpr uint32_t kHeads = kLatentHeads;
  const uint32_t heads = uint32_t(sizes.heads / sizes.kv_heads);  // of a kv head
  const uint32_t row = index / uint32_t(grid.head_blocks);
  const uint32_t first = (index - row * uint32_t(grid.head_blocks)) * kHeads;
  const uint32_t unit = row / uint32_t(sizes.q_len), batch = unit / uint32_t(sizes.kv_heads);
  const uint32_t kv_head = unit - batch * uint32_t(sizes.kv_heads);
  return {int32_t(batch), int32_t(kv_head), int32_t(kv_head * heads + first),
          int32_t(min(kHeads, heads - first)), int64_t{row - unit * uint32_t(sizes.q_len)}};
}
__device__ __forceinline__ device::KeyList latent_list(const device::GatherForwardParams& p,
                                                       const LatentWork& work) {
  const int32_t group = p.view.group_of_head(work.batch * p.sizes.heads + work.first_head);
  return device::key_list(p.view, group, uint32_t(work.query) / uint32_t(p.view.rows_per_list));
}

// ---- producers ----

// Where a chunk of 16 bytes of a row is in a panel.
__device__ __forceinline__ uint32_t chunk_in_panel(int row, int chunk) {
  return uint32_t(row * 128 + (chunk ^ row % 8) * 16);
}

// Eight lanes copy a row, and each group of eight has four neighbouring rows of a block: the bits
// of the 16 rows of a warp, set for those that have a key. Negative: padding.
__device__ __forceinline__ uint16_t bits_of_keys(const int32_t (&keys)[4]) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t those = __ballot_sync(~0u, keys[i] >= 0);
#pragma unroll
    for (int r = 0; r < 4; ++r) bits |= (those >> (8 * r) & 1) << (4 * r + i);
  }
  return uint16_t(bits);
}

// ---- scores ----

// Base-2 scores; padding is -infinity. `there` has a bit per key.
template <int kCount, class Bits>
__device__ __forceinline__ void mask_scores(float (&score)[kCount], float factor, Bits there) {
  static_assert(2 * kCount == 8 * sizeof(Bits));
#pragma unroll
  for (int i = 0; i < kCount; ++i) score[i] *= factor;
  if (there == Bits(~Bits{0})) return;
  const Bits mine = there >> (device::thread_index() % 4 * 2);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const bool is_key = (mine >> (i / 4 * 8 + i % 2) & 1) != 0;
    if (!is_key) score[i] = -INFINITY;
  }
}

template <int kCount>
__device__ __forceinline__ float max_of_row(const float (&score)[kCount], int half) {
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    top = fmaxf(top, fmaxf(score[i + 2 * half], score[i + 2 * half + 1]));
  }
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
  return fmaxf(top, __shfl_xor_sync(~0u, top, 2));
}
__device__ __forceinline__ float sum_of_row(float sum) {
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

// The base of weights before there is a score. All scores exceed it by far, so that the first block
// with keys is noticed.
inline constexpr float kNoScores = -3e38f;

// Weights of scores against the bases of their rows, packed as the left operands of products, and
// the sums of this thread's.
template <class T, int kCount>
__device__ __forceinline__ void weigh_scores(const float (&score)[kCount], const float (&base)[2],
                                             float (&total)[2],
                                             uint32_t (&weights)[kCount / 8][4]) {
  total[0] = total[1] = 0;
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const int half = i / 2 % 2;
    const float first = mma::exp2_fast(score[i] - base[half]);
    const float second = mma::exp2_fast(score[i + 1] - base[half]);
    total[half] += first;
    total[half] += second;
    weights[i / 8][i / 4 % 2 * 2 + half] = mma::Element<T>::pack(first, second);
  }
}
template <class T>
__device__ __forceinline__ bool is_within(float total) {
  return total <= mma::Element<T>::max_probability;  // false for NaN
}

// ---- results ----

// Stores 256 columns of a row of the output, those that v has. All lanes must call; is_row: the row
// is a head. Neighbouring lanes swap, so that the four of a row store whole sectors of 32 bytes.
template <class T>
__device__ __forceinline__ void store_out(const device::GatherForwardParams& p,
                                          const LatentWork& work, int row, int first_column,
                                          const float (&out)[128], int half, float sum) {
  const bool is_row = row < work.num_heads;
  const int lane = int(device::thread_index() % 4);
  const bool is_odd = lane % 2 != 0;
  const int32_t column = first_column + (is_odd ? 8 : 0) + lane / 2 * 4;
  T* const to = p.out.row<T>(work.batch, work.first_head + (is_row ? row : 0), work.query) + column;
  const int32_t columns_left = is_row ? p.sizes.v_head_dim - column : 0;
  const float by = sum == 0 ? 0.f : 1 / sum;
#pragma unroll
  for (int j = 0; j < 32; j += 2) {
    const int at = 4 * j + 2 * half;
    const uint32_t a = mma::Element<T>::pack(out[at] * by, out[at + 1] * by);
    const uint32_t b = mma::Element<T>::pack(out[at + 4] * by, out[at + 5] * by);
    const uint32_t got = __shfl_xor_sync(~0u, is_odd ? a : b, 1);
    if (8 * j < columns_left) {
      *reinterpret_cast<uint2*>(to + 8 * j) = is_odd ? uint2{got, b} : uint2{a, got};
    }
  }
}
__device__ __forceinline__ void store_lse(const device::GatherForwardParams& p,
                                          const LatentWork& work, int row, float base, float sum) {
  if (p.lse.data == nullptr || row >= work.num_heads || device::thread_index() % 4 != 0) return;
  const float lse2 = sum == 0 ? -INFINITY : base + log2f(sum);
  *p.lse.row<float>(work.batch, work.first_head + row, work.query) = lse2 * device::kLn2;
}

}  // namespace keyhole::sm90
