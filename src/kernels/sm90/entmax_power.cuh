// src/kernels/sm90/entmax_power.cuh
// Powers of x = 1 + (alpha - 1) (score - lambda), at least 0, for the products of a tile; and the
// step towards lambda from sums of them.
#pragma once

#include <cuda_fp16.h>

#include "base/entmax.h"
#include "kernels/device/ptx.cuh"

namespace keyhole::sm90 {

// Which r = 1 / (alpha - 1) a loop over a tile is compiled for.
enum class PowerKind : uint8_t {
  four,   // alpha = 1.25
  two,    // alpha = 1.5
  steep,  // r > 2
  flat,   // r < 2
};
inline PowerKind kind_of(const EntmaxPower& power) {
  if (power.whole == 4) return PowerKind::four;
  if (power.whole == 2) return PowerKind::two;
  return power.power > 2 ? PowerKind::steep : PowerKind::flat;
}

// Keeps NaN, so that no NaN among the scores of a row is lost.
__device__ __forceinline__ float at_least_0(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// Sums over a row.
struct PowerSums {
  float weight = 0;  // of x^r
  float slope = 0;   // of x^(r - 1)
  float curve = 0;   // of x^(r - 2); not for r < 2

  template <PowerKind kKind>
  __device__ __forceinline__ void add(float x, float r) {
    if constexpr (kKind == PowerKind::four) {
      const float square = x * x;
      weight = fmaf(square, square, weight);
      slope = fmaf(square, x, slope);
      curve += square;
    } else if constexpr (kKind == PowerKind::two) {
      weight = fmaf(x, x, weight);
      slope += x;
      curve += x > 0 ? 1.f : 0.f;
    } else if constexpr (kKind == PowerKind::steep) {
      const float of_curve = device::exp2_fast((r - 2) * device::log2_fast(x)),
                  of_slope = of_curve * x;
      weight = fmaf(of_slope, x, weight);
      slope += of_slope;
      curve += of_curve;
    } else {
      const float power = device::exp2_fast((r - 1) * device::log2_fast(x));
      const float of_slope = x > 0 ? power : x;  // x: 0 or NaN
      weight = fmaf(of_slope, x, weight);
      slope += of_slope;
    }
  }
  template <PowerKind kKind>
  __device__ __forceinline__ float step(float r) const {
    return kKind == PowerKind::flat ? tau_step(r, weight, slope)
                                    : tau_step(r, weight, slope, curve);
  }
};

// The same for r = 4 in fp16, two terms at a time: for a step that need not be exact. A sum is of a
// few terms; x above 15 makes it infinite.
struct RoughSums {
  __half2 weight = {}, slope = {}, curve = {};

  // x, y: may be negative, and count as 0 then.
  __device__ __forceinline__ void add(float x, float y) {
    uint32_t bits;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(y), "f"(x));
    const __half2 two = reinterpret_cast<const __half2&>(bits), square = __hmul2(two, two);
    weight = __hfma2(square, square, weight);
    slope = __hfma2(square, two, slope);
    curve = __hadd2(curve, square);
  }
  __device__ __forceinline__ void add_to(PowerSums& sums) const {
    sums.weight += __low2float(weight) + __high2float(weight);
    sums.slope += __low2float(slope) + __high2float(slope);
    sums.curve += __low2float(curve) + __high2float(curve);
  }
};

// A row with this distance between the sum of its weights and 1 is solved by one more step.
template <PowerKind kKind>
__device__ __forceinline__ constexpr float distance_of_last_step() {
  return kKind == PowerKind::flat ? 0.01f : kKind == PowerKind::two ? 0.03f : 0.1f;
}

// x^r.
template <PowerKind kKind>
__device__ __forceinline__ float weight_of(float x, float r) {
  if constexpr (kKind == PowerKind::four) return x * x * (x * x);
  if constexpr (kKind == PowerKind::two) return x * x;
  return device::exp2_fast(r * device::log2_fast(x));
}

}  // namespace keyhole::sm90
