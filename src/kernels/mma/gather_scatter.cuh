// src/kernels/mma/gather_scatter.cuh
// Gradients of gathered keys and values, added to fp32 sums in global memory as soon as a warp has
// them: a key may be in many lists.
#pragma once

#include "kernels/mma/gather_products.cuh"
#include "kernels/mma/ptx.cuh"
#include "kernels/mma/row_swizzle.cuh"

namespace keyhole::mma {

// Sums of the gradients of a kv head's keys or values, row after row.
struct ScatteredSums {
  float* first;
  int32_t cols;
};

// Adds 32 columns of 16 keys, which a warp has as four products: numbers 2 * half and 2 * half + 1
// of product j are those of key lane / 4 + 8 * half, columns 8 * j + 2 * (lane % 4) and the next.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// An instruction can add four numbers. Lanes swap theirs first, so that the eight lanes of two
// neighbouring keys have 128 contiguous bytes of either: pieces of lines take longer to add.
class KeyAdder {
 public:
  // keys: from keys_of_step.
  __device__ __forceinline__ KeyAdder(const ScatteredSums& sums, int32_t keys) {
    const uint32_t lane = threadIdx.x % 32;
    const int my_col = (has_odd_key() ? 16 : 0) + (is_odd() ? 8 : 0) + int(lane % 4 / 2) * 4;
    cols_left_ = sums.cols - my_col;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t key = __shfl_sync(~0u, keys, int(lane / 8) * 2 + i % 2 + i / 2 * 8);
      is_there_[i] = key >= 0;
      to_[i] = sums.first + int64_t(max(key, 0)) * sums.cols + my_col;
    }
  }

  __device__ __forceinline__ void add(int col, const float (&sum)[4][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto two = [&](int j) { return float2{sum[j][2 * half], sum[j][2 * half + 1]}; };
      const float4 left = four(two(0), two(1)), right = four(two(2), two(3));
      const float4 given = has_odd_key() ? left : right;
      const float4 got = {__shfl_xor_sync(~0u, given.x, 4), __shfl_xor_sync(~0u, given.y, 4),
                          __shfl_xor_sync(~0u, given.z, 4), __shfl_xor_sync(~0u, given.w, 4)};
      add_four(2 * half, col, has_odd_key() ? got : left);
      add_four(2 * half + 1, col, has_odd_key() ? right : got);
    }
  }

 private:
  static __device__ __forceinline__ bool is_odd() { return threadIdx.x % 2 != 0; }
  static __device__ __forceinline__ bool has_odd_key() { return threadIdx.x / 4 % 2 != 0; }

  // Neighbouring lanes have two columns each of two blocks. Even ones get four of `low`, odd ones
  // of `high`.
  static __device__ __forceinline__ float4 four(const float2& low, const float2& high) {
    const float2 given = is_odd() ? low : high;
    const float2 got = {__shfl_xor_sync(~0u, given.x, 1), __shfl_xor_sync(~0u, given.y, 1)};
    return is_odd() ? float4{got.x, got.y, high.x, high.y} : float4{low.x, low.y, got.x, got.y};
  }
  __device__ __forceinline__ void add_four(int key, int col, const float4& sum) const {
    add_to_global(to_[key] + col, float2{sum.x, sum.y}, float2{sum.z, sum.w},
                  is_there_[key] && col < cols_left_);
  }

  float* to_[4];  // of the keys of lanes l / 8 * 2, the next one, and both + 8
  bool is_there_[4];
  int cols_left_;
};
#else
class KeyAdder {
 public:
  __device__ __forceinline__ KeyAdder(const ScatteredSums& sums, int32_t keys) : cols_(sums.cols) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t key = __shfl_sync(~0u, keys, int(lane / 4) + 8 * half);
      is_there_[half] = key >= 0;
      to_[half] = sums.first + int64_t(max(key, 0)) * sums.cols + lane % 4 * 2;
    }
  }

  __device__ __forceinline__ void add(int col, const float (&sum)[4][4]) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        add_to_global(to_[half] + col + 8 * j, sum[j][2 * half], sum[j][2 * half + 1],
                      is_there_[half] && col + 8 * j < cols_);
      }
    }
  }

 private:
  float* to_[2];
  bool is_there_[2];
  int cols_;
};
#endif

// sums(keys) += weights^T . rows, for 16 keys and 16 rows. weights: rows by keys, packed; keys:
// from keys_of_step; smem: the rows.
template <class T, class S>
__device__ __forceinline__ void scatter(const ScatteredSums& sums, int32_t keys,
                                        const uint32_t (&weights)[4], uint32_t smem) {
  static_assert(S::head_dim % 32 == 0);
  const uint32_t by_key[4] = {transposed_matrix(weights[0]), transposed_matrix(weights[2]),
                              transposed_matrix(weights[1]), transposed_matrix(weights[3])};
  const KeyAdder adder(sums, keys);
  const uint32_t place = place_of_terms<S::head_dim>(smem);
#pragma unroll
  for (int col = 0; col < S::head_dim; col += 32) {
    float sum[4][4];
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      uint32_t terms[4];
      load_matrices_transposed(terms, RowSwizzle<S::head_dim>::further(place, col / 8 + j));
      Element<T>::multiply(sum[j], by_key, terms[0], terms[1]);
      Element<T>::multiply(sum[j + 1], by_key, terms[2], terms[3]);
    }
    adder.add(col, sum);
  }
}

}  // namespace keyhole::mma
