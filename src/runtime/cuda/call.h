// src/runtime/cuda/call.h
// What every call on a GPU does around its kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "kernels/contract.h"
#include "kernels/device/check_cuda.h"
#include "runtime/gpu.h"

namespace keyhole {

inline void describe_gpu(const Device& on, Launch& launch) {
  const Gpu& device = gpu(on);
  launch.num_processors = device.num_processors;
  // A test may ask for less shared memory than there is.
  if (launch.shared_bytes == 0) launch.shared_bytes = device.shared_bytes;
  launch.l2_cache_bytes = device.l2_cache_bytes;
}

inline bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "asking whether a stream is captured");
  return status != cudaStreamCaptureStatusNone;
}

// Scratch memory: the caller's, or the driver's in stream order.
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

// An error that an earlier call of somebody else left behind must not be taken for ours.
inline void forget_old_errors() { cudaGetLastError(); }

}  // namespace keyhole
