// src/kernels/sm80/index_loss_tiles.cuh
// The tiles of an index loss (index_loss_walk.h): how they are copied to shared memory, their
// products, and sums over heads. Rows of 64 columns, heads and keys alike, are swizzled.
#pragma once

#include "kernels/mma/ptx.cuh"
#include "kernels/mma/row_swizzle.cuh"
#include "kernels/sm80/index_loss_params.h"

namespace keyhole::sm80 {

using device::AnyTensor, device::IndexLossParams;
using LossSwizzle = mma::RowSwizzle<kLossColumns>;

// Copies what the tiles of a row are multiplied of. A thread copies 16 bytes of every 32nd row of a
// tile; eight neighbours copy a row.
template <class T, class S>
struct LossCopies {
  const LossPairs& p;
  int32_t batch, group, count;  // count: keys of the row
  int64_t query;

  // listed: the keys of the block, in shared memory.
  __device__ __forceinline__ void copy_keys(uint32_t to, const LossTile& tile,
                                            uint32_t listed) const {
    const AnyTensor& from = tile.is_index ? p.loss.k : p.loss.target_k;
    const int32_t head = tile.is_index ? group : tile.kv_head(p.heads, group);
    const int32_t col = tile.col + chunk() * 8;
    const T* const first = first_of(from) + from.offset(batch, head, 0) + col;
    const int32_t left = col < tile.cols(p.heads) ? count - tile.block * kLossKeys - row() : 0;
    to += LossSwizzle::offset(row(), chunk());
    listed += row() * 4;
#pragma unroll
    for (int i = 0; i < kLossKeys; i += kRowsAtOnce) {
      const bool is_there = i < left;
      const auto key = int32_t(mma::load_shared(listed + i * 4));
      const T* const source = is_there ? first + key * from.at.row_stride : first_of(from);
      mma::copy_async_or_zeros(to + i * S::row_bytes, source, is_there);
    }
  }
  // `rows`: zeros past the last head.
  __device__ __forceinline__ void copy_heads(uint32_t to, const LossTile& tile,
                                             int32_t rows) const {
    const AnyTensor& from = tile.is_index ? p.loss.q : p.loss.target_q;
    const int32_t head = tile.head + group * (tile.is_index ? p.heads.heads : p.heads.target_heads);
    const int32_t col = tile.col + chunk() * 8;
    const T* const first = first_of(from) + from.offset(batch, head, query) + col;
    const int32_t left = col < tile.cols(p.heads) ? tile.count - row() : 0;
    to += LossSwizzle::offset(row(), chunk());
#pragma unroll 4
    for (int32_t i = 0; i < rows; i += kRowsAtOnce) {
      const bool is_there = i < left;
      const T* const source = is_there ? first + (i + row()) * from.at.head_stride : first_of(from);
      mma::copy_async_or_zeros(to + i * S::row_bytes, source, is_there);
    }
  }

 private:
  static constexpr int kRowsAtOnce = S::threads / 8;
  static_assert(kLossKeys % kRowsAtOnce == 0 && kRowsAtOnce == kWarpHeads);
  static __device__ __forceinline__ int32_t row() { return int32_t(threadIdx.x) / 8; }
  static __device__ __forceinline__ int32_t chunk() { return int32_t(threadIdx.x) % 8; }
  static __device__ __forceinline__ const T* first_of(const AnyTensor& tensor) {
    return static_cast<const T*>(tensor.at.data);
  }
};

// A warp has 32 heads of a tile, and some of its keys.
template <class S>
struct WarpPart {
  int32_t first_head, first_key;
  static __device__ __forceinline__ WarpPart mine() {
    const int32_t warp = int32_t(threadIdx.x) / 32;
    return {warp % S::head_warps * kWarpHeads, warp / S::head_warps * S::warp_keys};
  }
};

// Products of 32 heads and the keys of a warp: element e of [b][n] is of head 16 b + lane / 4 + 8
// (e / 2) and key 8 n + 2 (lane % 4) + e % 2.
template <class S>
using LossProducts = float[2][S::eights][4];

// Adds those of a tile: `heads` and `keys` are its rows in shared memory.
template <class T, class S>
__device__ __forceinline__ void add_tile(LossProducts<S>& sums, const WarpPart<S>& part,
                                         uint32_t heads, uint32_t keys) {
  const uint32_t lane = threadIdx.x % 32;
  heads += LossSwizzle::offset(uint32_t(part.first_head) + lane % 16, lane / 16);
  keys += LossSwizzle::offset(uint32_t(part.first_key) + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int x = 0; x < kLossColumns / 16; ++x) {
    uint32_t a[2][4];
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      mma::load_matrices(a[b], LossSwizzle::further(heads, 2 * x) + b * 16 * S::row_bytes);
    }
#pragma unroll
    for (int n = 0; n < S::eights; n += 2) {
      uint32_t k[4];
      mma::load_matrices(k, LossSwizzle::further(keys, 2 * x) + n * 8 * S::row_bytes);
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        mma::Element<T>::multiply_add(sums[b][n], a[b], k[0], k[1]);
        mma::Element<T>::multiply_add(sums[b][n + 1], a[b], k[2], k[3]);
      }
    }
  }
}

// Sums over the eight lanes that have the same two keys of each eight. A lane ends with those of
// one eight, own_eight(): all its lanes have them, if there are fewer than eight eights.
template <int kEights>
__device__ __forceinline__ float2 sum_over_lanes(float (&sums)[kEights][2]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int stage = 0; stage < 3; ++stage) {
    const int step = 16 >> stage, left = kEights >> stage;
    const bool is_upper = (lane & uint32_t(step)) != 0;
    if (left > 1) {
#pragma unroll
      for (int n = 0; n < left / 2; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float given = is_upper ? sums[n][i] : sums[n + left / 2][i];
          const float kept = is_upper ? sums[n + left / 2][i] : sums[n][i];
          sums[n][i] = kept + __shfl_xor_sync(~0u, given, step);
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) sums[0][i] += __shfl_xor_sync(~0u, sums[0][i], step);
    }
  }
  return {sums[0][0], sums[0][1]};
}
template <int kEights>
__device__ __forceinline__ int32_t own_eight() {
  static_assert(kEights == 2 || kEights == 4 || kEights == 8);
  const int32_t lane = int32_t(threadIdx.x) % 32;
  return kEights == 8   ? (lane / 16) * 4 + lane / 8 % 2 * 2 + lane / 4 % 2
         : kEights == 4 ? (lane / 16) * 2 + lane / 8 % 2
                        : lane / 16;
}
// One of the lanes that end with the same sums.
template <int kEights>
__device__ __forceinline__ bool is_first_owner() {
  return (threadIdx.x % 32 & (32u / kEights - 4u)) == 0;
}

}  // namespace keyhole::sm80
