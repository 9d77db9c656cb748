// src/kernels/device/storage.h
// The GPU type of a dtype.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "keyhole/tensor.h"

namespace keyhole::device {

template <DType kType>
struct StorageOf;
template <>
struct StorageOf<DType::f16> {
  using Type = __half;
};
template <>
struct StorageOf<DType::bf16> {
  using Type = __nv_bfloat16;
};
template <>
struct StorageOf<DType::f32> {
  using Type = float;
};
template <>
struct StorageOf<DType::e4m3> {  // of indexers alone
  using Type = __nv_fp8_e4m3;
};
template <DType kType>
using Storage = typename StorageOf<kType>::Type;

}  // namespace keyhole::device
