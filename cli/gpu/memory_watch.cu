// cli/gpu/memory_watch.cu
#include <algorithm>

#include "cli/gpu/measure.h"
#include "kernels/device/check_cuda.h"
#include "runtime/gpu_memory.h"

namespace keyhole::bench {
namespace {

constexpr const char* kDoing = "asking for the memory in use";

cudaMemPool_t pool_of(const Device& device) {
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaDeviceGetDefaultMemPool(&pool, device.ordinal), kDoing);
  return pool;
}

int64_t bytes_of(cudaMemPool_t pool, cudaMemPoolAttr which) {
  uint64_t bytes = 0;
  check_cuda(cudaMemPoolGetAttribute(pool, which, &bytes), kDoing);
  return int64_t(bytes);
}

}  // namespace

MemoryWatch::MemoryWatch(const Device& device) : device_(device) {
  synchronize(device);  // what is being freed is not in use
  const cudaMemPool_t pool = pool_of(device);
  uint64_t anew = 0;  // the mark falls to what is in use now
  check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &anew), kDoing);
  bytes_before_ = bytes_of(pool, cudaMemPoolAttrUsedMemCurrent);
}

int64_t MemoryWatch::extra_bytes() const {
  return std::max<int64_t>(0,
                           bytes_of(pool_of(device_), cudaMemPoolAttrUsedMemHigh) - bytes_before_);
}

}  // namespace keyhole::bench
