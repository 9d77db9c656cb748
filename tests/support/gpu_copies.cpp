// tests/support/gpu_copies.cpp
#include "support/gpu_copies.h"

#include "base/check.h"

namespace keyhole::test {
namespace {

constexpr int64_t kCanaryBytes = 512;
constexpr int kPoison = 0xff;  // NaN in every dtype

}  // namespace

TensorView GpuCopies::copy(const PoisonedTensor& tensor, PoisonedTensor* back) {
  TensorView view = tensor.view();
  if (!view.is_given()) return view;
  const int64_t bytes = int64_t(tensor.memory().size());
  // A tensor's place within 16 bytes must be the same there: alignment is part of the case.
  const auto skew = int64_t(reinterpret_cast<uintptr_t>(tensor.memory().data()) % 16);
  KEYHOLE_ASSERT(skew == 0, "the memory of a poisoned tensor is aligned");
  GpuMemory memory(device_, bytes);
  memory.copy_from_host(tensor.memory().data(), bytes);
  view.data = static_cast<std::byte*>(memory.data()) + tensor.offset_bytes();
  view.device = device_;
  copies_.push_back({std::move(memory), back});
  return view;
}

int32_t* GpuCopies::integers(std::vector<int32_t>& values) {
  const int64_t bytes = int64_t(values.size() * sizeof(int32_t));
  GpuMemory memory(device_, bytes);
  memory.copy_from_host(values.data(), bytes);
  auto* const data = static_cast<int32_t*>(memory.data());
  integers_.push_back({std::move(memory), &values});
  return data;
}

void* GpuCopies::workspace(int64_t bytes) {
  workspace_bytes_ = bytes;
  workspace_ = GpuMemory(device_, bytes + kCanaryBytes);
  workspace_.fill(kPoison);
  return workspace_.data();
}

std::string GpuCopies::finish() {
  synchronize(device_);
  for (const Copy& copy : copies_) {
    if (copy.back == nullptr) continue;
    copy.memory.copy_to_host(copy.back->memory().data(), int64_t(copy.back->memory().size()));
  }
  for (const Integers& values : integers_) {
    values.memory.copy_to_host(values.back->data(), values.memory.bytes());
  }
  if (workspace_.data() == nullptr) return "";
  std::vector<unsigned char> all(size_t(workspace_.bytes()));
  workspace_.copy_to_host(all.data(), workspace_.bytes());
  for (int64_t i = workspace_bytes_; i < workspace_.bytes(); ++i) {
    if (all[size_t(i)] != kPoison)
      return say("byte ", i - workspace_bytes_, " behind the workspace was written");
  }
  return "";
}

}  // namespace keyhole::test
