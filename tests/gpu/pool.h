// tests/gpu/pool.h
// How much of the driver's memory pool is in use: tensors, lists of plans and workspaces.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/gpu_problem.h"

namespace keyhole::test {

// When all work on the GPU is done, so that what was given back in stream order is back.
inline int64_t pool_bytes() {
  synchronize(kGpu);
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaDeviceGetMemPool(&pool, kGpu.ordinal), "asking for the memory pool");
  uint64_t bytes = 0;
  check_cuda(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes),
             "asking what the memory pool holds");
  return int64_t(bytes);
}

}  // namespace keyhole::test
