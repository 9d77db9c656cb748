// src/kernels/cpu/scratch.h
// Aligned, uninitialised memory for packs and strips. It grows, never shrinks, and is freed with
// its owner. Large allocations request huge pages: the packs of a call are fresh memory, and page
// faults of 4 KiB took as long as a sparse pattern itself.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#ifdef __linux__
#include <sys/mman.h>
#endif

#include "base/int_math.h"
#include "kernels/cpu/config.h"

namespace keyhole::cpu {

template <class T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t count) { reserve(count); }

  // At least `count` elements; what they hold is undefined.
  T* reserve(int64_t count) {
    if (count > count_) {
      memory_.reset();
      memory_.reset(static_cast<T*>(
          allocate(checked_mul(count, int64_t(sizeof(T)), "cpu kernels: scratch memory"))));
      count_ = count;
    }
    return memory_.get();
  }
  T* data() const { return memory_.get(); }
  // Also valid if nothing was reserved and the pointer is null: null plus an offset is undefined.
  T* at(int64_t i) const { return memory_ ? memory_.get() + i : nullptr; }
  T& operator[](int64_t i) const { return memory_.get()[i]; }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  static constexpr int64_t kHugePage = int64_t{2} << 20;

  static void* allocate(int64_t bytes) {
    const int64_t alignment = bytes >= kHugePage ? kHugePage : int64_t(kAlignment);
    const size_t rounded = size_t(round_up(bytes, alignment));
    void* memory = std::aligned_alloc(size_t(alignment), rounded);
    if (memory == nullptr) throw std::bad_alloc();
#ifdef __linux__
    if (alignment == kHugePage) madvise(memory, rounded, MADV_HUGEPAGE);  // only a hint
#endif
    return memory;
  }

  std::unique_ptr<T, Free> memory_;
  int64_t count_ = 0;
};

}  // namespace keyhole::cpu
