// tests/support/gpu/gpu_array.h
// Numbers of one type in the memory of a GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/gpu_memory.h"

namespace keyhole::test {

inline constexpr Device kTestGpu{Device::Kind::cuda, 0};

template <class T>
class GpuArray {
 public:
  GpuArray() = default;
  explicit GpuArray(int64_t count) : memory_(kTestGpu, count * int64_t(sizeof(T))) {}
  explicit GpuArray(const std::vector<T>& from) : GpuArray(int64_t(from.size())) {
    memory_.copy_from_host(from.data(), memory_.bytes());
    synchronize(kTestGpu);  // the copy may still be reading what is about to go
  }
  T* get() const { return static_cast<T*>(memory_.data()); }
  int64_t count() const { return memory_.bytes() / int64_t(sizeof(T)); }
  void clear() const { memory_.fill(0); }
  std::vector<T> read() const {  // waits
    std::vector<T> all(static_cast<size_t>(count()));
    memory_.copy_to_host(all.data(), memory_.bytes());
    return all;
  }

 private:
  GpuMemory memory_;
};

}  // namespace keyhole::test
