// src/kernels/device/once_per_gpu.h
// What the driver is told of a kernel before its first launch on a GPU: that it needs more shared
// memory than any launch may have. The driver remembers it, for as long as its context lives: after
// cudaDeviceReset() launches fail. Telling it again for every launch took 0.4 us of a small call.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/device/check_cuda.h"

namespace keyhole::device {

// Hidden: another copy of the library in the process has kernels of its own, and must not take its
// own to be known where these are.
class [[gnu::visibility("hidden")]] OncePerGpu {
 public:
  // Calls `tell` unless that was done on the current GPU before, and no error came of it. Threads
  // that come first together may both do it.
  void operator()(auto tell) {
    int ordinal = 0;
    check_cuda(cudaGetDevice(&ordinal), "asking for the current GPU");
    const uint64_t gpu = ordinal < 64 ? uint64_t{1} << ordinal : 0;
    if ((told_.load(std::memory_order_acquire) & gpu) != 0) return;
    tell();
    told_.fetch_or(gpu, std::memory_order_release);
  }

 private:
  std::atomic<uint64_t> told_ = 0;  // a bit for each GPU; further ones are told every time
};

}  // namespace keyhole::device
