// src/kernels/device/launch.h
// Queues a kernel, like kernel<<<ctas, threads, bytes, stream>>>(parameters...). That form first
// stores the launch configuration for another function to fetch and copies the parameters, which
// takes 0.25 us of a small call.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/device/check_cuda.h"

namespace keyhole::device {

struct Grid {
  unsigned ctas, threads;  // of a CTA
  size_t shared_bytes;     // per CTA, in addition to static shared memory
  // The kernel may begin while the launch before it ends, and calls await_launch_before() (ptx.cuh)
  // ahead of all that depends on it. Needs compute capability 9.0. A launch that lets the next one
  // begin was not launched early itself, or has waited before: so what came before it has ended.
  bool begins_early = false;
};

// name: used in error messages.
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream,
            const std::type_identity_t<Parameters>&... parameters) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid.ctas;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = grid.begins_early ? 1 : 0;
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  const cudaError_t status =
      cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
  if (status != cudaSuccess) cudaGetLastError();  // clear it, or a later check would report it
  check_cuda(status, "launching ", name);
}

}  // namespace keyhole::device
