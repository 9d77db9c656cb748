// tests/support/gpu_copies.h
// Poisoned tensors in the memory of a GPU for the time of one call: moats and canaries go there and
// come back, so that damage shows on the host as it does for cpu kernels.
#pragma once

#include <vector>

#include "judge/device_copies.h"
#include "judge/poisoned_tensor.h"

namespace keyhole::test {

class GpuCopies {
 public:
  TensorView input(const judge::PoisonedTensor& tensor) { return copies_.input(tensor); }
  TensorView output(judge::PoisonedTensor& tensor) { return copies_.output(tensor); }
  // Those of a support.
  int32_t* integers(std::vector<int32_t>& values) { return copies_.integers(values); }
  // Scratch memory full of NaN, as large as asked for, with a canary behind it.
  void* workspace(int64_t bytes);
  // Waits, and brings the outputs back. Says what is wrong with the workspace's canary, if
  // anything.
  std::string finish();

 private:
  Device device_{Device::Kind::cuda, 0};
  judge::DeviceCopies copies_{device_};
  GpuMemory workspace_;
  int64_t workspace_bytes_ = 0;
};

}  // namespace keyhole::test
