// src/runtime/gpu_memory.h
// GPU memory for programs that have their data on the host: the command line and the tests.
#pragma once

#include <cstdint>

#include "keyhole/tensor.h"

namespace keyhole {

class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(const Device& device, int64_t bytes);
  ~GpuMemory();
  GpuMemory(GpuMemory&& other) noexcept;
  GpuMemory& operator=(GpuMemory&& other) noexcept;  // frees what it held

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // In the order of the default stream; copy_to_host waits for it.
  void copy_from_host(const void* from, int64_t bytes) const;
  void copy_to_host(void* to, int64_t bytes) const;
  void fill(int byte) const;

 private:
  void swap(GpuMemory& other) noexcept;

  Device device_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  uint64_t context_ = 0;  // cudaDeviceReset() destroys it, and the memory with it
};

// Waits for all work on a GPU; an error of that work shows here.
void synchronize(const Device& device);

}  // namespace keyhole
