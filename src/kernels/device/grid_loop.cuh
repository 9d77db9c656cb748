// src/kernels/device/grid_loop.cuh
// A grid-stride loop: one thread for each of many small items.
#pragma once

#include <algorithm>
#include <cstdint>

namespace keyhole::device {

inline constexpr int kLoopThreads = 256;

inline unsigned loop_ctas(int64_t count) {
  const int64_t ctas = (count + kLoopThreads - 1) / kLoopThreads;
  return unsigned(std::clamp<int64_t>(ctas, 1, int64_t{1} << 20));
}

template <class Visit>
__device__ void for_each_index(int64_t count, Visit visit) {
  const int64_t step = int64_t{gridDim.x} * kLoopThreads;
  for (int64_t i = int64_t{blockIdx.x} * kLoopThreads + threadIdx.x; i < count; i += step) {
    visit(i);
  }
}

}  // namespace keyhole::device
