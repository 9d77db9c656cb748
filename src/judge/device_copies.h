// src/judge/device_copies.h
// Tensors of the host on the device of one call: themselves on the CPU, copies on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "judge/poisoned_tensor.h"
#include "keyhole/tensor.h"
#include "runtime/gpu_memory.h"

namespace keyhole::judge {

class DeviceCopies {
 public:
  explicit DeviceCopies(const Device& device) : device_(device) {}

  // `memory` is all that goes along: the tensor lies in it, wherever.
  TensorView input(std::span<const std::byte> memory, const TensorView& view);
  TensorView output(std::span<std::byte> memory, const TensorView& view);  // it comes back too
  // With moats and canaries, so that damage shows on the host as it does for cpu kernels.
  TensorView input(const PoisonedTensor& tensor) { return input(tensor.memory(), tensor.view()); }
  TensorView output(PoisonedTensor& tensor) { return output(tensor.memory(), tensor.view()); }
  int32_t* integers(std::vector<int32_t>& values);  // they come back too
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
