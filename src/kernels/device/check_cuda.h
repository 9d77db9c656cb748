// src/kernels/device/check_cuda.h
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/check.h"

namespace keyhole {

// CUDA's own errors, with what we were doing when they surfaced.
inline void check_cuda(cudaError_t status, std::string_view doing) {
  if (status == cudaSuccess) return;
  throw Error(ErrorKind::device, say("while ", doing, ": ", cudaGetErrorString(status)));
}

}  // namespace keyhole
