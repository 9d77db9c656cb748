// src/kernels/device/check_cuda.h
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"

namespace keyhole {

// Throws CUDA's error with what we were doing. The text is built only on an error.
template <class... Doing>
void check_cuda(cudaError_t status, const Doing&... doing) {
  if (status == cudaSuccess) [[likely]]
    return;
  throw Error(ErrorKind::device, say("while ", doing..., ": ", cudaGetErrorString(status)));
}

}  // namespace keyhole
