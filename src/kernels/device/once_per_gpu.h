// src/kernels/device/once_per_gpu.h
// Sets a kernel's attributes (it needs more dynamic shared memory than the default) before its
// first launch on a GPU. The driver keeps them as long as the context lives. Setting them for every
// launch took 0.4 us of a small call.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "kernels/device/check_cuda.h"
#include "kernels/device/gpu_context.h"

namespace keyhole::device {

// Hidden visibility: another copy of the library in the process has its own kernels, and must not
// share this record.
class [[gnu::visibility("hidden")]] OncePerGpu {
 public:
  // Calls `tell` unless it has already succeeded in the current context. Threads that race for the
  // first call may both make it.
  void operator()(auto tell) {
    const uint64_t context = current_context();
    std::atomic<uint64_t>& told = told_[context % told_.size()];
    if (context != 0 && told.load(std::memory_order_acquire) == context) return;
    tell();
    told.store(context, std::memory_order_release);
  }

 private:
  // Context ids, indexed by their low bits: the GPUs of one process have neighbouring ids. Two
  // contexts that share an index overwrite each other and are set again each time.
  std::array<std::atomic<uint64_t>, 64> told_ = {};
};

// Lets a kernel have so much dynamic shared memory. once: of this kernel; name: for error messages.
template <class Kernel>
void reserve_shared_memory(OncePerGpu& once, Kernel kernel, int bytes, const char* name) {
  once([&] {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "reserving shared memory for ", name);
  });
}

}  // namespace keyhole::device
