// tests/support/gpu_copies.h
// Poisoned tensors in the memory of a GPU for the time of one call: moats and canaries go there and
// come back, so that damage shows on the host as it does for cpu kernels.
#pragma once

#include <vector>

#include "runtime/gpu_memory.h"
#include "support/poison.h"

namespace keyhole::test {

class GpuCopies {
 public:
  TensorView input(const PoisonedTensor& tensor) { return copy(tensor, nullptr); }
  TensorView output(PoisonedTensor& tensor) { return copy(tensor, &tensor); }
  // Integers of a support; they come back too.
  int32_t* integers(std::vector<int32_t>& values);
  // Scratch memory full of NaN, as large as asked for, with a canary behind it.
  void* workspace(int64_t bytes);
  // Waits, and brings the outputs back. Says what is wrong with the workspace's canary, if
  // anything.
  std::string finish();

 private:
  struct Copy {
    GpuMemory memory;
    PoisonedTensor* back;
  };
  TensorView copy(const PoisonedTensor& tensor, PoisonedTensor* back);

  struct Integers {
    GpuMemory memory;
    std::vector<int32_t>* back;
  };

  Device device_{Device::Kind::cuda, 0};
  std::vector<Copy> copies_;
  std::vector<Integers> integers_;
  GpuMemory workspace_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace keyhole::test
