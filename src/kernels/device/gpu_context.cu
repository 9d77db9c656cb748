// src/kernels/device/gpu_context.cu
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/device/check_cuda.h"
#include "kernels/device/gpu_context.h"

namespace keyhole::device {
namespace {

// Looked up at run time: a program linked to libcuda would not start on a machine without a driver.
template <class Function>
Function find_in_driver(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  if (status != cudaSuccess) cudaGetLastError();
  const bool is_found = status == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return is_found ? reinterpret_cast<Function>(found) : nullptr;
}

// The id of this thread's current context; 0 if there is none.
uint64_t id_in_this_thread() noexcept {
  static const auto get_id = find_in_driver<decltype(&cuCtxGetId)>("cuCtxGetId");
  unsigned long long id = 0;
  return get_id != nullptr && get_id(nullptr, &id) == CUDA_SUCCESS ? id : 0;
}

// Whether the runtime has a context on that GPU. It has none before its first work or after a
// reset.
bool is_begun(int ordinal) noexcept {
  static const auto get_state =
      find_in_driver<decltype(&cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState");
  unsigned flags = 0;
  int is_active = 0;
  return get_state != nullptr && get_state(CUdevice(ordinal), &flags, &is_active) == CUDA_SUCCESS &&
         is_active != 0;
}

// Whether this thread's current context is usable: after a reset it stays current but is not.
bool works_in_this_thread() noexcept {
  static const auto get_info = find_in_driver<decltype(&cuMemGetInfo)>("cuMemGetInfo");
  size_t free_bytes = 0, bytes = 0;
  return get_info != nullptr && get_info(&free_bytes, &bytes) == CUDA_SUCCESS;
}

}  // namespace

uint64_t current_context() {
  if (const uint64_t id = id_in_this_thread(); id != 0) [[likely]]
    return id;
  // This thread has not called CUDA yet, or its context was reset. Setting the current GPU again
  // creates a context. Other calls would too, but this one does not invalidate a stream capture.
  int ordinal = 0;
  check_cuda(cudaGetDevice(&ordinal), "asking for the current GPU");
  check_cuda(cudaSetDevice(ordinal), "choosing the current GPU");
  if (const uint64_t id = id_in_this_thread(); id != 0) return id;
  size_t free_bytes = 0, bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &bytes), "asking for the memory of the GPU");
  return id_in_this_thread();
}

uint64_t living_context(int ordinal) noexcept {
  // The runtime has no context: the program made one itself, or there is none after a reset.
  if (!is_begun(ordinal)) return works_in_this_thread() ? id_in_this_thread() : 0;
  if (const uint64_t id = id_in_this_thread(); id != 0) return id;
  return cudaSetDevice(ordinal) == cudaSuccess ? id_in_this_thread() : 0;  // a new thread
}

}  // namespace keyhole::device
