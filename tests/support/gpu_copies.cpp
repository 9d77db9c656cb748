// tests/support/gpu_copies.cpp
#include "support/gpu_copies.h"

#include "base/check.h"

namespace keyhole::test {
namespace {

constexpr int64_t kCanaryBytes = 512;
constexpr int kPoison = 0xff;  // NaN in every dtype

}  // namespace

int32_t* GpuCopies::integers(std::vector<int32_t>& values) {
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(values));
  const TensorView view(values.data(), DType::f32, {int64_t(values.size())});  // as wide as those
  return static_cast<int32_t*>(copies_.output(bytes, view).data);
}

void* GpuCopies::workspace(int64_t bytes) {
  workspace_bytes_ = bytes;
  workspace_ = GpuMemory(device_, bytes + kCanaryBytes);
  workspace_.fill(kPoison);
  return workspace_.data();
}

std::string GpuCopies::finish() {
  copies_.finish();
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
