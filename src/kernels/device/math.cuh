// src/kernels/device/math.cuh
// The arithmetic with which GPU kernels evaluate the weight rule (base/weight_rule.h). Scores are
// in base 2, unless it says otherwise.
#pragma once

#include "base/weight_rule.h"
#include "kernels/device/ptx.cuh"

namespace keyhole::device {

// Accurate to two units in the last place. For tensor-core kernels, whose weights are rounded to 16
// bits.
struct FastMath : PlainArithmetic<float> {
  static constexpr double kLogE = keyhole::kLog2E, kTanhScale = 2 * keyhole::kLog2E;
  static __device__ __forceinline__ float times_plus(float a, float b, float c) {
    return fmaf(a, b, c);
  }
  static __device__ __forceinline__ float power(float x) { return exp2_fast(x); }
  // Absolute error 1e-7. tanh.approx has 5e-4, which a softcap of 50 would amplify to 0.02.
  static __device__ __forceinline__ float tanh(float scaled) {
    return 1 - 2 * reciprocal_fast(1 + exp2_fast(scaled));
  }
};

// Full fp32 accuracy.
struct CarefulMath : PlainArithmetic<float> {
  static constexpr double kLogE = keyhole::kLog2E, kTanhScale = 1;
  static __device__ __forceinline__ float power(float x) { return exp2f(x); }
  static __device__ __forceinline__ float tanh(float x) { return tanhf(x); }
};

// fp64, for cold paths.
struct ExactMath : PlainArithmetic<double> {
  static constexpr double kLogE = keyhole::kLog2E, kTanhScale = 1;
  static __device__ double power(double x) { return exp2(x); }
  static __device__ double tanh(double x) { return ::tanh(x); }
};

// Scores in base e, for entmax: float or double.
template <class Number>
struct BaseEMath : PlainArithmetic<Number> {
  static constexpr double kLogE = 1, kTanhScale = 1;
  static __device__ __forceinline__ Number tanh(Number x) { return std::tanh(x); }
};

}  // namespace keyhole::device
