// src/kernels/device/find_from_top.cuh
// A rank in a histogram in shared memory, counted from its highest bin.
#pragma once

#include "kernels/device/cta_sum.cuh"

namespace keyhole::device {

inline constexpr int32_t kBins = 2048;  // digits of 11 bits

struct RankedBin {
  int32_t bin;
  uint32_t above, count;  // in higher bins; in this one
};

template <int32_t kThreads>
class FindFromTop {
 public:
  __device__ uint32_t& operator[](uint32_t bin) { return histogram_[bin]; }

  __device__ void clear() {
    __syncthreads();
    for (int32_t i = int32_t(threadIdx.x); i < kBins; i += kThreads) histogram_[i] = 0;
    __syncthreads();
  }
  // The bin of the element of this rank (1: the highest), which must exist. All threads call.
  __device__ RankedBin find(uint32_t rank, CtaSum<kThreads>& sums) {
    constexpr int32_t kPerThread = kBins / kThreads;
    __syncthreads();
    int32_t bin = kBins - 1 - int32_t(threadIdx.x) * kPerThread;
    uint32_t own = 0;
#pragma unroll
    for (int32_t i = 0; i < kPerThread; ++i) own += histogram_[bin - i];
    uint32_t above = sums.scan(own).before;
    if (above < rank && above + own >= rank) {
      while (above + histogram_[bin] < rank) above += histogram_[bin--];
      found_ = {bin, above, histogram_[bin]};
    }
    __syncthreads();
    return found_;
  }

 private:
  uint32_t histogram_[kBins];
  RankedBin found_;
};

}  // namespace keyhole::device
