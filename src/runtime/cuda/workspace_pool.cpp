// src/runtime/cuda/workspace_pool.cpp
#include "runtime/cuda/workspace_pool.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels/device/check_cuda.h"
#include "kernels/device/gpu_context.h"
#include "runtime/cuda/call.h"
#include "runtime/gpu.h"

namespace keyhole {
namespace {

// Lets this thread make calls that the driver would refuse while a stream is captured, here or in
// another thread.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then the one from before
};

cudaMemPool_t make_pool(int ordinal) {
  const RelaxedCapture relaxed;
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = ordinal;
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaMemPoolCreate(&pool, &properties), "making a memory pool for workspaces");
  uint64_t all = UINT64_MAX;
  const cudaError_t status = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all);
  if (status != cudaSuccess) cudaMemPoolDestroy(pool);
  check_cuda(status, "making a memory pool that keeps its memory");
  return pool;
}

class Pools {
 public:
  cudaMemPool_t of_current_gpu() {
    int ordinal = 0;
    check_cuda(cudaGetDevice(&ordinal), "asking for the current GPU");
    const uint64_t context = device::current_context();
    const std::lock_guard lock(mutex_);
    auto found = find(ordinal);
    if (found != made_.end() && found->context == context) return found->pool;
    cudaMemPool_t const pool = make_pool(ordinal);
    // A reset has destroyed the pool from before.
    if (found != made_.end()) made_.erase(found);
    made_.push_back({ordinal, context, pool});
    return pool;
  }
  bool has(int ordinal) {
    const std::lock_guard lock(mutex_);
    return find(ordinal) != made_.end();
  }

 private:
  struct Made {
    int ordinal;
    uint64_t context;
    cudaMemPool_t pool;
  };
  std::vector<Made>::iterator find(int ordinal) {
    return std::ranges::find(made_, ordinal, &Made::ordinal);
  }

  std::mutex mutex_;
  std::vector<Made> made_;
};

// One per process, never destroyed: calls may come until the very end.
Pools& pools() {
  static auto* const all = new Pools;
  return *all;
}

}  // namespace

cudaMemPool_t workspace_pool() { return pools().of_current_gpu(); }

void release_workspaces_on_gpu(const Device& device) {
  gpu(device);                               // throws if there is no such GPU
  if (!pools().has(device.ordinal)) return;  // no context is made for nothing
  const OnGpu here(device.ordinal);
  check_cuda(cudaMemPoolTrimTo(workspace_pool(), 0), "giving back the memory of workspaces");
}

}  // namespace keyhole
