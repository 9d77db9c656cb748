// src/kernels/device/storage.h
// The GPU type of a dtype.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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
template <DType kType>
using Storage = typename StorageOf<kType>::Type;

}  // namespace keyhole::device
