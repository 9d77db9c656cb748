// src/judge/device_copies.h
// Tensors of the host on the device of one call: themselves on the CPU, copies on a GPU.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "keyhole/tensor.h"
#include "runtime/gpu_memory.h"

namespace keyhole::judge {

class DeviceCopies {
 public:
  explicit DeviceCopies(const Device& device) : device_(device) {}

  // `memory` is all that goes along: the tensor lies in it, wherever.
  TensorView input(std::span<const std::byte> memory, const TensorView& view);
  TensorView output(std::span<std::byte> memory, const TensorView& view);  // it comes back too
  // Waits for the call and brings the outputs back.
  void finish() const;

 private:
  struct Copy {
    GpuMemory memory;
    std::byte* back;  // null for an input
  };
  TensorView copy(std::span<const std::byte> memory, TensorView view, std::byte* back);

  Device device_;
  std::vector<Copy> copies_;
};

}  // namespace keyhole::judge
