// tests/support/gpu_copies.cpp
#include "support/gpu_copies.h"

#include "base/check.h"

namespace keyhole::test {
namespace {

constexpr int64_t kCanaryBytes = 512;
constexpr int kPoison = 0xff;  // NaN in every dtype

}  // namespace

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
