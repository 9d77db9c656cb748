// src/kernels/device/check_cuda.h
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"

namespace keyhole {

// CUDA's own errors, with what we were doing when they surfaced; put into words only then.
template <class... Doing>
void check_cuda(cudaError_t status, const Doing&... doing) {
  if (status == cudaSuccess) [[likely]]
    return;
  throw Error(ErrorKind::device, say("while ", doing..., ": ", cudaGetErrorString(status)));
}

}  // namespace keyhole
