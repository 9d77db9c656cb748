// tests/support/gpu/poisoned_on_gpu.cpp
#include "support/gpu/poisoned_on_gpu.h"

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "base/dtype.h"
#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "support/gpu/fill.h"
#include "support/gpu/gpu_array.h"

namespace keyhole::test {
namespace {

using judge::kCanary, judge::kNanMoat;

constexpr int64_t kCanaryBytes = 512;
constexpr uint16_t kWorkspacePoison = 0xffff;  // NaN in every dtype

GpuMemory copy_of(const GpuMemory& memory) {
  GpuMemory copy(kTestGpu, memory.bytes());
  check_cuda(cudaMemcpyAsync(copy.data(), memory.data(), size_t(memory.bytes()),
                             cudaMemcpyDeviceToDevice, nullptr),
             "copying a tensor on the GPU");
  return copy;
}

}  // namespace

PoisonedOnGpu::PoisonedOnGpu(const judge::Placement& placed, bool is_output)
    : placed_(placed), is_output_(is_output), memory_(kTestGpu, placed_.bytes()) {
  placed_.view.data = static_cast<std::byte*>(memory_.data()) + placed_.first_byte();
  placed_.view.device = kTestGpu;
  paint_on_gpu(memory_.data(), memory_.bytes(), is_output ? kCanary : kNanMoat);
}

void PoisonedOnGpu::fill(const Numbers& numbers) {
  if (is_given()) fill_on_gpu(view(), numbers);
}

void PoisonedOnGpu::seal() {
  if (is_given()) sealed_ = copy_of(memory_);
}

void PoisonedOnGpu::look_for_damage(Verdict* verdict) const {
  if (!is_given()) return;
  if (!is_output_) {
    compare_words(memory_.data(), sealed_.data(), sealed_.bytes(), verdict);
    return;
  }
  const GpuMemory rest = copy_of(memory_);  // what remains when the elements are painted over
  TensorView elements = view();
  elements.data = static_cast<std::byte*>(rest.data()) + placed_.first_byte();
  paint_elements_on_gpu(elements, kCanary);
  compare_with_pattern(rest.data(), rest.bytes(), kCanary, verdict);
}

std::string PoisonedOnGpu::damage_text(const Verdict& verdict) const {
  const int64_t byte = 2 * int64_t(verdict.first_wrong()) - placed_.first_byte();
  return say(is_output_ ? "an output was written outside, " : "an input was written to, ", byte,
             " bytes from its first element");
}

std::vector<std::byte> PoisonedOnGpu::read() const {
  std::vector<std::byte> bytes(static_cast<size_t>(memory_.bytes()));
  memory_.copy_to_host(bytes.data(), memory_.bytes());
  return bytes;
}

void PoisonedOnGpu::write(const std::vector<std::byte>& bytes) const {
  KEYHOLE_ASSERT(int64_t(bytes.size()) == memory_.bytes(), "a tensor is written as a whole");
  memory_.copy_from_host(bytes.data(), memory_.bytes());
  synchronize(kTestGpu);  // the copy may still be reading what is about to go
}

double PoisonedOnGpu::get(int64_t index) const {
  int64_t place_of_it = 0;
  for (int d = view().rank - 1; d >= 0; --d) {
    place_of_it += index % view().shape[d] * view().strides[d];
    index /= view().shape[d];
  }
  return with_storage(view().dtype, [&](auto storage) {
    check_cuda(cudaMemcpy(&storage, static_cast<decltype(storage)*>(view().data) + place_of_it,
                          sizeof storage, cudaMemcpyDeviceToHost),
               "copying an element from the GPU");
    return double(to_f32(storage));
  });
}

WorkspaceOnGpu::WorkspaceOnGpu(int64_t bytes)
    : canary_at_(round_up(bytes, 2)), memory_(kTestGpu, canary_at_ + kCanaryBytes) {
  paint_on_gpu(memory_.data(), memory_.bytes(), kWorkspacePoison);
}

void WorkspaceOnGpu::look_for_damage(Verdict* verdict) const {
  compare_with_pattern(static_cast<const std::byte*>(memory_.data()) + canary_at_, kCanaryBytes,
                       kWorkspacePoison, verdict);
}

}  // namespace keyhole::test
