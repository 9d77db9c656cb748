// src/runtime/cuda/memory.cpp
#include <utility>

#include "kernels/device/check_cuda.h"
#include "kernels/device/gpu_context.h"
#include "runtime/cuda/call.h"
#include "runtime/gpu_memory.h"

namespace keyhole {

GpuMemory::GpuMemory(const Device& device, int64_t bytes) : device_(device), bytes_(bytes) {
  if (bytes == 0) return;
  const OnGpu here(device_.ordinal);
  context_ = device::current_context();
  check_cuda(cudaMallocAsync(&data_, size_t(bytes), nullptr), "allocating ", bytes,
             " bytes on GPU ", device.ordinal);
}
GpuMemory::~GpuMemory() {
  if (data_ == nullptr) return;
  // The default stream belongs to the current GPU.
  on_gpu_quietly(device_.ordinal, [this] {
    if (device::living_context(device_.ordinal) == context_) cudaFreeAsync(data_, nullptr);
  });
}
GpuMemory::GpuMemory(GpuMemory&& other) noexcept { swap(other); }
GpuMemory& GpuMemory::operator=(GpuMemory&& other) noexcept {
  GpuMemory taken(std::move(other));
  swap(taken);  // frees the old memory now, not with `other`
  return *this;
}
void GpuMemory::swap(GpuMemory& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(context_, other.context_);
}

void GpuMemory::copy_from_host(const void* from, int64_t bytes) const {
  if (bytes == 0) return;
  const OnGpu here(device_.ordinal);
  check_cuda(cudaMemcpyAsync(data_, from, size_t(bytes), cudaMemcpyHostToDevice, nullptr),
             "copying to the GPU");
}
void GpuMemory::copy_to_host(void* to, int64_t bytes) const {
  if (bytes == 0) return;
  const OnGpu here(device_.ordinal);
  check_cuda(cudaMemcpyAsync(to, data_, size_t(bytes), cudaMemcpyDeviceToHost, nullptr),
             "copying from the GPU");
  check_cuda(cudaStreamSynchronize(nullptr), "copying from the GPU");
}
void GpuMemory::fill(int byte) const {
  if (bytes_ == 0) return;
  const OnGpu here(device_.ordinal);
  check_cuda(cudaMemsetAsync(data_, byte, size_t(bytes_), nullptr), "filling memory of the GPU");
}

void synchronize(const Device& device) {
  const OnGpu here(device.ordinal);
  check_cuda(cudaDeviceSynchronize(), "waiting for the GPU");
}

}  // namespace keyhole
