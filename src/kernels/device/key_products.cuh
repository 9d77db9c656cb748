// src/kernels/device/key_products.cuh
// q . k of one query with the keys of 32 lanes. Eight lanes read a key together, 128 neighbouring
// bytes with one load, and eight keys are in flight. A last exchange gives each lane the product of
// its own key.
#pragma once

#include "kernels/device/convert.cuh"

namespace keyhole::device {

// Rows of one head, as 32 lanes read them.
template <class T>
struct HeadRows {
  const T* data;
  int64_t stride;
  int32_t cols;
  bool in_vectors;  // is_in_vectors<T>
};

__device__ inline float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double multiply_add(float a, float b, double c) {
  return fma(double(a), double(b), c);
}

// q: [cols] in shared memory. key: -1: none, and any product. The order of additions depends on the
// number of columns alone. The whole warp calls.
template <class Number, class T>
__device__ __forceinline__ Number product_with_key(const float* q, const HeadRows<T>& rows,
                                                   int32_t key) {
  constexpr int32_t kLanes = 8, kAtOnce = kVector<T>;
  const int32_t lane = int32_t(threadIdx.x % 32), first_lane = lane & ~(kLanes - 1);
  const T* row[kLanes];  // null: none
  Number sum[kLanes];
#pragma unroll
  for (int32_t i = 0; i < kLanes; ++i) {
    const int32_t his_key = __shfl_sync(~0u, key, first_lane + i);
    row[i] = his_key < 0 ? nullptr : rows.data + his_key * rows.stride;
    sum[i] = 0;
  }
#pragma unroll 1
  for (int32_t col = lane % kLanes * kAtOnce; col < rows.cols; col += kLanes * kAtOnce) {
    if (!rows.in_vectors) {  // the same products in the same order
#pragma unroll 1
      for (int32_t x = col; x < col + kAtOnce && x < rows.cols; ++x) {
#pragma unroll
        for (int32_t i = 0; i < kLanes; ++i) {
          if (row[i] != nullptr) sum[i] = multiply_add(q[x], value_of(row[i][x]), sum[i]);
        }
      }
      continue;
    }
    uint4 raw[kLanes];
#pragma unroll
    for (int32_t i = 0; i < kLanes; ++i) {
      raw[i] = row[i] == nullptr ? uint4{} : load_vector(row[i], col, rows.cols);
    }
    float of_q[kAtOnce];
#pragma unroll
    for (int32_t x = 0; x < kAtOnce; ++x) of_q[x] = q[col + x];
#pragma unroll
    for (int32_t i = 0; i < kLanes; ++i) {
      float of_k[kAtOnce];
      convert<T>(raw[i], of_k);
#pragma unroll
      for (int32_t x = 0; x < kAtOnce; ++x) sum[i] = multiply_add(of_q[x], of_k[x], sum[i]);
    }
  }
  __syncwarp();
  // Each step halves the keys of a lane: it keeps those whose number has the bit of the lane's own.
#pragma unroll
  for (int32_t half = kLanes / 2; half > 0; half /= 2) {
    const bool is_upper = (lane & half) != 0;
#pragma unroll
    for (int32_t i = 0; i < half; ++i) {
      const Number kept = is_upper ? sum[i + half] : sum[i];
      const Number given = is_upper ? sum[i] : sum[i + half];
      sum[i] = kept + __shfl_xor_sync(~0u, given, half);
    }
  }
  return sum[0];
}

// The same, not inlined: for passes that are rarely made.
template <class Number, class T>
__device__ __noinline__ Number rare_product_with_key(const float* q, const HeadRows<T>& rows,
                                                     int32_t key) {
  return product_with_key<Number>(q, rows, key);
}

}  // namespace keyhole::device
