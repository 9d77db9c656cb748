// src/kernels/device/cta_sum.cuh
// Sums over the threads of a CTA.
#pragma once

#include <cstdint>

namespace keyhole::device {

template <int32_t kThreads>
struct CtaSum {
  static constexpr int32_t kWarps = kThreads / 32;

  uint32_t of_warp[kWarps];  // in shared memory

  struct Sums {
    uint32_t before, all;  // over the threads before this one, and over all
  };
  // All threads call.
  __device__ Sums scan(uint32_t own) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t upto = own;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, upto, step);
      if (lane >= step) upto += other;
    }
    __syncthreads();  // the sums of an earlier call have been read
    if (lane == 31) of_warp[warp] = upto;
    __syncthreads();
    Sums sums = {upto - own, 0};
#pragma unroll
    for (uint32_t w = 0; w < uint32_t(kWarps); ++w) {
      if (w < warp) sums.before += of_warp[w];
      sums.all += of_warp[w];
    }
    return sums;
  }
  __device__ uint32_t all(uint32_t own) { return scan(own).all; }
};

}  // namespace keyhole::device
