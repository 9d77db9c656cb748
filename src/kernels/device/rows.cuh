// src/kernels/device/rows.cuh
// Rows of tensors as a thread or a warp reads and writes them: fp32 in registers, the storage type
// in memory. Only elements are assumed to be aligned.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "base/int_math.h"
#include "kernels/device/params.h"

namespace keyhole::device {

// Strides of dimensions of size 1 do not matter; 0 keeps them from affecting the alignment.
inline DeviceTensor device_tensor(const TensorView& tensor) {
  const auto stride = [&](int d) { return tensor.shape[d] > 1 ? tensor.strides[d] : 0; };
  return {tensor.data, stride(0), stride(1), stride(2)};
}

// Of ForwardArgs or BackwardArgs.
template <class Args>
Sizes sizes_of(const Args& args) {
  return {.batch = narrow(args.q.shape[0], "attention: batch"),
          .heads = narrow(args.q.shape[1], "attention: heads"),
          .kv_heads = narrow(args.k.shape[1], "attention: heads of k"),
          .head_dim = narrow(args.q.shape[3], "attention: head_dim"),
          .v_head_dim = narrow(args.v.shape[3], "attention: head_dim of v"),
          .q_len = args.q.shape[2],
          .k_len = args.k.shape[2],
          .scale = float(args.rule.scale),
          .softcap = float(args.rule.softcap)};
}

// Calls visit(Storage{}) with the device type of a dtype that GPU kernels read.
template <class Visitor>
decltype(auto) with_device_storage(DType dtype, Visitor&& visit) {
  if (dtype == DType::f16) return visit(__half{});
  if (dtype == DType::bf16) return visit(__nv_bfloat16{});
  return visit(float{});
}

__device__ inline float value_of(float x) { return x; }
__device__ inline float value_of(__half x) { return __half2float(x); }
__device__ inline float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float value_of(__nv_fp8_e4m3 x) { return float(x); }
__device__ inline float value_of(double x) { return float(x); }

// Round to nearest, ties to even; overflow becomes infinity, NaN stays NaN.
template <class Storage>
__device__ Storage stored_as(float x) {
  if constexpr (std::is_same_v<Storage, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<Storage, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

__device__ inline bool is_finite(float x) { return fabsf(x) < INFINITY; }  // false for NaN

// Four neighbours of a row that ends `left` elements further (0 or less: none); zeros past the end.
// kAligned: `at` and `left` are multiples of four elements.
template <bool kAligned, class Storage>
__device__ float4 load_four(const Storage* at, int32_t left) {
  struct alignas(4 * sizeof(Storage)) Four {
    Storage x, y, z, w;
  };
  if (left <= 0) return {0, 0, 0, 0};
  if constexpr (kAligned) {
    const Four four = *reinterpret_cast<const Four*>(at);
    return {value_of(four.x), value_of(four.y), value_of(four.z), value_of(four.w)};
  } else {
    return {value_of(at[0]), left > 1 ? value_of(at[1]) : 0.f, left > 2 ? value_of(at[2]) : 0.f,
            left > 3 ? value_of(at[3]) : 0.f};
  }
}

// The sum over a warp, the same bits in every lane.
template <class Number>
__device__ Number warp_sum(Number x) {
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Writes one row of dq, dk or dv. Each column is touched by one thread in this launch.
template <class Storage>
struct GradientRow {
  float* sum;      // [cols], added to; null: `to` is written
  Storage* to;     // [cols]
  int32_t* found;  // set if a written value is not finite
  int32_t cols;

  __device__ void put(int32_t col, float value) const {
    if (col >= cols) return;
    if (sum != nullptr) {
      sum[col] += value;
      return;
    }
    const Storage stored = stored_as<Storage>(value);
    to[col] = stored;
    if (!is_finite(value_of(stored))) *found = 1;
  }
};

// Row `index` of `head`, which is one of `heads` (query heads for dq, kv heads for dk and dv).
template <class Storage>
__device__ GradientRow<Storage> gradient_row(const DeviceTensor& to, float* sums, int32_t* found,
                                             int32_t heads, int64_t length, int32_t cols,
                                             int32_t batch, int32_t head, int64_t index) {
  const int64_t row = (int64_t{batch} * heads + head) * length + index;
  return {sums == nullptr ? nullptr : sums + row * cols, to.row<Storage>(batch, head, index), found,
          cols};
}

}  // namespace keyhole::device
