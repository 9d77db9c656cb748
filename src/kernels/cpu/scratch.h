// src/kernels/cpu/scratch.h
// Aligned, uninitialised memory for packs and strips. Grows, never shrinks, freed with its owner.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

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
      const int64_t bytes =
          round_up(checked_mul(count, int64_t(sizeof(T)), "scratch memory"), int64_t(kAlignment));
      memory_.reset();
      memory_.reset(static_cast<T*>(std::aligned_alloc(kAlignment, size_t(bytes))));
      if (memory_ == nullptr) throw std::bad_alloc();
      count_ = count;
    }
    return memory_.get();
  }
  T* data() const { return memory_.get(); }
  T& operator[](int64_t i) const { return memory_.get()[i]; }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> memory_;
  int64_t count_ = 0;
};

}  // namespace keyhole::cpu
