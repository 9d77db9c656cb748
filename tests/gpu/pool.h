// tests/gpu/pool.h
// How much of the memory pools is in use: tensors and lists of plans in that of the driver,
// workspaces in the library's.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/gpu_problem.h"
#include "runtime/cuda/workspace_pool.h"

namespace keyhole::test {

inline int64_t pool_attribute(cudaMemPool_t pool, cudaMemPoolAttr which) {
  uint64_t bytes = 0;
  check_cuda(cudaMemPoolGetAttribute(pool, which, &bytes), "asking what a memory pool holds");
  return int64_t(bytes);
}

// When all work on the GPU is done, so that what was given back in stream order is back.
inline int64_t pool_bytes() {
  synchronize(kGpu);
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaDeviceGetMemPool(&pool, kGpu.ordinal), "asking for the memory pool");
  return pool_attribute(pool, cudaMemPoolAttrUsedMemCurrent) +
         pool_attribute(workspace_pool(), cudaMemPoolAttrUsedMemCurrent);
}

}  // namespace keyhole::test
