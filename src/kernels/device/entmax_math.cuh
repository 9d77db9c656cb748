// src/kernels/device/entmax_math.cuh
// The arithmetic of entmax on a GPU: scores in base e, in fp32.
#pragma once

#include "base/entmax.h"
#include "kernels/device/params.h"

namespace keyhole::device {

struct EntmaxDeviceMath : EntmaxMath<float> {
  static constexpr double kLogE = 1, kTanhScale = 1;
  static __device__ __forceinline__ float power(float x) { return expf(x); }
  static __device__ __forceinline__ float tanh(float x) { return tanhf(x); }
};
using EntmaxScoreRule = SoftmaxRule<EntmaxDeviceMath>;
using EntmaxWeightRule = EntmaxRule<EntmaxDeviceMath>;

}  // namespace keyhole::device
