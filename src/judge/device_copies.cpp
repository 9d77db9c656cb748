// src/judge/device_copies.cpp
#include "judge/device_copies.h"

namespace keyhole::judge {

TensorView DeviceCopies::input(std::span<const std::byte> memory, const TensorView& view) {
  return copy(memory, view, nullptr);
}

TensorView DeviceCopies::output(std::span<std::byte> memory, const TensorView& view) {
  return copy(memory, view, memory.data());
}

int32_t* DeviceCopies::integers(std::vector<int32_t>& values) {
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(values));
  const TensorView view(values.data(), DType::f32, {int64_t(values.size())});  // as wide as those
  return static_cast<int32_t*>(output(bytes, view).data);
}

TensorView DeviceCopies::copy(std::span<const std::byte> memory, TensorView view, std::byte* back) {
  if (device_.kind == Device::Kind::cpu || !view.is_given()) return view;
  GpuMemory there(device_, int64_t(memory.size()));
  there.copy_from_host(memory.data(), there.bytes());
  const auto* const begin = static_cast<const std::byte*>(view.data);
  view.data = static_cast<std::byte*>(there.data()) + (begin - memory.data());
  view.device = device_;
  copies_.push_back({std::move(there), back});
  return view;
}

void DeviceCopies::finish() const {
  if (device_.kind == Device::Kind::cpu) return;
  synchronize(device_);
  for (const Copy& copy : copies_) {
    if (copy.back != nullptr) copy.memory.copy_to_host(copy.back, copy.memory.bytes());
  }
}

}  // namespace keyhole::judge
