// src/kernels/device/once_per_gpu.h
// What the driver is told of a kernel before its first launch on a GPU: that it needs more shared
// memory than any launch may have. The driver remembers it for as long as its context lives.
// Telling it again for every launch took 0.4 us of a small call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kernels/device/gpu_context.h"

namespace keyhole::device {

// Hidden: another copy of the library in the process has kernels of its own, and must not take its
// own to be known where these are.
class [[gnu::visibility("hidden")]] OncePerGpu {
 public:
  // Calls `tell` unless that was done in the current context before, and no error came of it.
  // Threads that come first together may both do it.
  void operator()(auto tell) {
    const uint64_t context = current_context();
    std::atomic<uint64_t>& told = told_[context % told_.size()];
    if (context != 0 && told.load(std::memory_order_acquire) == context) return;
    tell();
    told.store(context, std::memory_order_release);
  }

 private:
  // Contexts, by their last digits: GPUs of one process have neighbouring ids. Two that share a
  // place are told by turns.
  std::array<std::atomic<uint64_t>, 64> told_ = {};
};

}  // namespace keyhole::device
