// src/kernels/mma/gather_products.cuh
// Matrix products by one warp: rows by the keys or values in a slot of shared memory. The gather
// kernels have 16 gathered ones in a slot.
#pragma once

#include "kernels/mma/gather_config.h"
#include "kernels/mma/ptx.cuh"
#include "kernels/mma/row_swizzle.cuh"

namespace keyhole::mma {

// The rows as operand fragments: kept in registers, or read at each use.
template <class S>
class RowFragments {
 public:
  __device__ __forceinline__ explicit RowFragments(uint32_t smem)
      : place_(smem + RowSwizzle<S::head_dim>::offset(threadIdx.x % 16, threadIdx.x % 32 / 16)) {
    if constexpr (S::keeps_rows) {
#pragma unroll
      for (int x = 0; x < S::head_dim / 16; ++x) {
#pragma unroll
        for (int b = 0; b < S::blocks; ++b) read(kept_[x][b], x, b);
      }
    }
  }
  // Columns [16 * x, 16 * x + 16) of block b.
  __device__ __forceinline__ void get(uint32_t (&to)[4], int x, int b) const {
    if constexpr (S::keeps_rows) {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = kept_[x][b][i];
    } else {
      read(to, x, b);
    }
  }

 private:
  __device__ __forceinline__ void read(uint32_t (&to)[4], int x, int b) const {
    load_matrices(to, RowSwizzle<S::head_dim>::further(place_, 2 * x) + b * 16 * S::row_bytes);
  }
  uint32_t place_;
  uint32_t kept_[S::keeps_rows ? S::head_dim / 16 : 1][S::blocks][4];
};

// s = rows . keys for the keys of a slot, 8 kEights of them. Element i of block b, n is in row 16 *
// b + lane / 4 + 8 * (i / 2), key 8 * n + 2 * (lane % 4) + i % 2.
template <class T, class S, int kEights>
__device__ __forceinline__ void multiply_by_keys(float (&s)[S::blocks][kEights][4],
                                                 const RowFragments<S>& rows, uint32_t slot) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t place =
      slot + RowSwizzle<S::head_dim>::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int x = 0; x < S::head_dim / 16; ++x) {
#pragma unroll
    for (int n = 0; n < kEights; n += 2) {
      uint32_t k[4];
      load_matrices(k, RowSwizzle<S::head_dim>::further(place, 2 * x) + n * 8 * S::row_bytes);
#pragma unroll
      for (int b = 0; b < S::blocks; ++b) {
        uint32_t q[4];
        rows.get(q, x, b);
        if (x == 0) {
          Element<T>::multiply(s[b][n], q, k[0], k[1]);
          Element<T>::multiply(s[b][n + 1], q, k[2], k[3]);
        } else {
          Element<T>::multiply_add(s[b][n], q, k[0], k[1]);
          Element<T>::multiply_add(s[b][n + 1], q, k[2], k[3]);
        }
      }
    }
  }
}

// The address from which a lane reads 16 rows (keys, values, or query rows) as the terms of a
// product.
template <int kHeadDim>
__device__ __forceinline__ uint32_t place_of_terms(uint32_t smem) {
  const uint32_t lane = threadIdx.x % 32;
  return smem + RowSwizzle<kHeadDim>::offset(lane % 16, lane / 16);
}

// sums += weights . (the 16 rows of a slot). weights: rows by keys, packed.
template <class T, class S>
__device__ __forceinline__ void add_products(float (&sums)[S::blocks][S::head_dim / 8][4],
                                             const uint32_t (&weights)[S::blocks][4],
                                             uint32_t slot) {
  const uint32_t place = place_of_terms<S::head_dim>(slot);
#pragma unroll
  for (int x = 0; x < S::head_dim / 16; ++x) {
    uint32_t terms[4];
    load_matrices_transposed(terms, RowSwizzle<S::head_dim>::further(place, 2 * x));
#pragma unroll
    for (int b = 0; b < S::blocks; ++b) {
      Element<T>::multiply_add(sums[b][2 * x], weights[b], terms[0], terms[1]);
      Element<T>::multiply_add(sums[b][2 * x + 1], weights[b], terms[2], terms[3]);
    }
  }
}

// Packs weights as a product reads them: 16 rows by 16 keys.
template <class T>
__device__ __forceinline__ void pack_weights(uint32_t (&to)[4], const float (&from)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = Element<T>::pack(from[i / 2][i % 2 * 2], from[i / 2][i % 2 * 2 + 1]);
  }
}

// Stores the warp's sums, row after row, for other warps to read.
template <class S>
__device__ __forceinline__ void leave_products(const float (&sums)[S::blocks][S::head_dim / 8][4],
                                               float* to) {
  const int lane = int(threadIdx.x % 32);
#pragma unroll
  for (int b = 0; b < S::blocks; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * b + 8 * half + lane / 4;
#pragma unroll
      for (int n = 0; n < S::head_dim / 8; ++n) {
        *reinterpret_cast<float2*>(to + row * S::result_pitch + 8 * n + 2 * (lane % 4)) = {
            sums[b][n][2 * half], sums[b][n][2 * half + 1]};
      }
    }
  }
}

}  // namespace keyhole::mma
