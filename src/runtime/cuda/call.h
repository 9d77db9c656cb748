// src/runtime/cuda/call.h
// What every call on a GPU does around its kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "base/check.h"
#include "kernels/contract.h"
#include "kernels/device/check_cuda.h"
#include "runtime/cuda/workspace_pool.h"
#include "runtime/gpu.h"
#include "runtime/workspace.h"

namespace keyhole {

// Makes a GPU current as long as this lives.
class OnGpu {
 public:
  explicit OnGpu(int ordinal) : ordinal_(ordinal) {
    check_cuda(cudaGetDevice(&before_), "asking for the current GPU");
    if (before_ != ordinal_) check_cuda(cudaSetDevice(ordinal_), "switching to another GPU");
  }
  ~OnGpu() {
    if (before_ != ordinal_) cudaSetDevice(before_);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  // After code of others, which may have left another GPU current: that one is current again at the
  // end, because they think so.
  void return_from_others() {
    int current = 0;
    check_cuda(cudaGetDevice(&current), "asking for the current GPU");
    if (current == ordinal_) return;
    check_cuda(cudaSetDevice(ordinal_), "switching back to the GPU of a call");
    before_ = current;
  }

 private:
  int before_ = 0, ordinal_;
};

// For destructors: throws nothing, and ignores errors of a driver that is shutting down.
void on_gpu_quietly(int ordinal, auto action) noexcept {
  int before = ordinal;
  if (cudaGetDevice(&before) == cudaSuccess &&
      (before == ordinal || cudaSetDevice(ordinal) == cudaSuccess)) {
    action();
  }
  if (before != ordinal) cudaSetDevice(before);
  cudaGetLastError();
}

// Memory of a pool on the current GPU, freed in stream order.
class PoolMemory {
 public:
  // what: what it is for, for error messages. pool: workspace_pool(), or null: the driver's own.
  PoolMemory(size_t bytes, const char* what, cudaStream_t stream, cudaMemPool_t pool = nullptr)
      : stream_(stream) {
    check_cuda(pool != nullptr ? cudaMallocFromPoolAsync(&data_, bytes, pool, stream)
                               : cudaMallocAsync(&data_, bytes, stream),
               "allocating ", bytes, " bytes for ", what);
  }
  ~PoolMemory() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  void* data() const { return data_; }
  void* release() { return std::exchange(data_, nullptr); }  // the caller frees it instead

 private:
  void* data_ = nullptr;
  cudaStream_t stream_;
};

inline void describe_gpu(const Device& on, Launch& launch) {
  const Gpu& device = gpu(on);
  // A test may pass fewer processors and less shared memory than there are.
  if (launch.num_processors == 0) launch.num_processors = device.num_processors;
  if (launch.shared_bytes == 0) launch.shared_bytes = device.shared_bytes;
  launch.l2_cache_bytes = device.l2_cache_bytes;
}

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "asking whether a stream is captured");
  return status != cudaStreamCaptureStatusNone;
}

// Clears an error that an earlier call elsewhere left behind, so that it is not taken for ours.
inline void forget_old_errors() { cudaGetLastError(); }

// Calls run(workspace) with the caller's memory, or with memory of the workspace pool in stream
// order. bytes 0: run(nullptr).
inline void with_workspace(OnGpu& here, const Workspace& brought, const AllocateWorkspace& allocate,
                           int64_t bytes, cudaStream_t stream, auto run) {
  if (bytes == 0) return run(static_cast<void*>(nullptr));
  void* workspace = workspace_of_caller(brought, allocate, bytes);
  if (workspace != nullptr) {
    here.return_from_others();
    forget_old_errors();  // an allocator may have had to try twice
    return run(workspace);
  }
  check_cuda(cudaMallocFromPoolAsync(&workspace, size_t(bytes), workspace_pool(), stream),
             "allocating a workspace of ", bytes, " bytes");
  try {
    run(workspace);
  } catch (...) {
    cudaFreeAsync(workspace, stream);
    throw;
  }
  check_cuda(cudaFreeAsync(workspace, stream), "giving back the workspace");
}

}  // namespace keyhole
