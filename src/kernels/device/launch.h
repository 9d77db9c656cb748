// src/kernels/device/launch.h
// Queues a kernel, as kernel<<<ctas, threads, bytes, stream>>>(parameters...) does; that one first
// puts its four numbers aside for another function to fetch them, and copies the parameters: 0.25
// us of a small call.
#pragma once

#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/device/check_cuda.h"

namespace keyhole::device {

struct Grid {
  unsigned ctas, threads;  // of a CTA
  size_t shared_bytes;     // of a CTA, beside those that the kernel declares
};

// name: what error messages call it.
template <class... Parameters>
void launch(const char* name, void (*kernel)(Parameters...), const Grid& grid, cudaStream_t stream,
            const std::type_identity_t<Parameters>&... parameters) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid.ctas;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  const cudaError_t status =
      cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), pointers);
  if (status != cudaSuccess) cudaGetLastError();  // or others would take it for theirs
  check_cuda(status, "launching ", name);
}

}  // namespace keyhole::device
