// src/runtime/cuda/call.h
// What every call on a GPU does around its kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "base/check.h"
#include "kernels/contract.h"
#include "kernels/device/check_cuda.h"
#include "runtime/gpu.h"

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

// Memory of the driver's pool on the current GPU, freed in stream order.
class PoolMemory {
 public:
  // what: what it is for, for error messages.
  PoolMemory(size_t bytes, const char* what, cudaStream_t stream) : stream_(stream) {
    check_cuda(cudaMallocAsync(&data_, bytes, stream), "allocating ", bytes, " bytes for ", what);
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
  launch.num_processors = device.num_processors;
  // A test may pass less shared memory than there is.
  if (launch.shared_bytes == 0) launch.shared_bytes = device.shared_bytes;
  launch.l2_cache_bytes = device.l2_cache_bytes;
}

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "asking whether a stream is captured");
  return status != cudaStreamCaptureStatusNone;
}

// Runs with scratch memory: the caller's, or memory of the driver's pool in stream order.
inline void with_workspace(Launch& launch, int64_t bytes, cudaStream_t stream, auto run) {
  if (bytes == 0) return run();
  if (launch.workspace != nullptr) {
    KEYHOLE_CHECK(launch.workspace_bytes >= bytes, "attention: the workspace has ",
                  launch.workspace_bytes, " bytes; this call needs ", bytes);
    return run();
  }
  check_cuda(cudaMallocAsync(&launch.workspace, size_t(bytes), stream),
             "allocating a workspace of ", bytes, " bytes");
  launch.workspace_bytes = bytes;
  try {
    run();
  } catch (...) {
    cudaFreeAsync(launch.workspace, stream);
    throw;
  }
  check_cuda(cudaFreeAsync(launch.workspace, stream), "giving back the workspace");
}

// Clears an error that an earlier call elsewhere left behind, so that it is not taken for ours.
inline void forget_old_errors() { cudaGetLastError(); }

}  // namespace keyhole
