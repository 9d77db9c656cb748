// src/kernels/device/convert.cuh
// Sixteen bytes of a row at once: loaded as stored, converted to fp32 at their use, so that many
// loads can be in flight before the first is awaited. rows.cuh has single elements.
#pragma once

#include <cstring>

#include "kernels/device/params.h"
#include "kernels/device/rows.cuh"

namespace keyhole::device {

template <class T>
inline constexpr int kVector = int(16 / sizeof(T));  // elements of one load

// Whether rows of `cols` elements can be read and written in vectors.
template <class T>
__host__ __device__ bool is_in_vectors(const DeviceTensor& tensor, int32_t cols) {
  const uint64_t bytes =
      uint64_t(tensor.batch_stride | tensor.head_stride | tensor.row_stride | int64_t{cols}) *
      sizeof(T);
  return (reinterpret_cast<uintptr_t>(tensor.data) | bytes) % 16 == 0;
}

// Elements [col, col + kVector) of a row of `cols`; zeros past its end.
template <class T>
__device__ uint4 load_vector(const T* row, int32_t col, int32_t cols) {  // is_in_vectors
  return col < cols ? *reinterpret_cast<const uint4*>(row + col) : uint4{};
}
template <class T>
__device__ uint4 load_singly(const T* row, int32_t col, int32_t cols) {
  T elements[kVector<T>];
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) {
    elements[i] = col + i < cols ? row[col + i] : stored_as<T>(0.f);
  }
  uint4 raw;
  memcpy(&raw, elements, sizeof(raw));
  return raw;
}

__device__ inline float2 two_values(uint32_t raw, const __half*) {
  __half2 two;
  memcpy(&two, &raw, sizeof(raw));
  return __half22float2(two);
}
__device__ inline float2 two_values(uint32_t raw, const __nv_bfloat16*) {
  return {__uint_as_float(raw << 16), __uint_as_float(raw & 0xffff0000u)};
}

template <class T>
__device__ void convert(const uint4& raw, float (&to)[kVector<T>]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      to[i] = __uint_as_float(words[i]);
    } else {
      const float2 two = two_values(words[i], static_cast<const T*>(nullptr));
      to[2 * i] = two.x;
      to[2 * i + 1] = two.y;
    }
  }
}

// Stores elements [col, col + 4) of a row of `cols`, except those past its end. `at_once`: the row
// is aligned to four elements, and cols is a multiple of four.
template <class T>
__device__ void store_four(T* row, int32_t col, int32_t cols, const float (&values)[4],
                           bool at_once) {
  struct alignas(4 * sizeof(T)) Four {
    T elements[4];
  };
  if (at_once) {
    if (col >= cols) return;
    Four four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.elements[i] = stored_as<T>(values[i]);
    *reinterpret_cast<Four*>(row + col) = four;
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (col + i < cols) row[col + i] = stored_as<T>(values[i]);
  }
}

}  // namespace keyhole::device
