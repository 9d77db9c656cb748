// src/judge/poisoned_tensor.h
// Tensors in the worst company: any layout, with poison in every byte that is not an element.
// Inputs are surrounded by NaN, so that reading too far shows in the result; outputs by a canary,
// so that writing too far shows in the canary. Both are checked after the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "judge/placement.h"

namespace keyhole::judge {

class PoisonedTensor {
 public:
  PoisonedTensor() = default;
  PoisonedTensor(const Placement& placed, bool is_output);  // elements hold poison until written
  PoisonedTensor(PoisonedTensor&&) = default;  // the view points into the moved vector's memory
  PoisonedTensor& operator=(PoisonedTensor&&) = default;

  const TensorView& view() const { return view_; }
  int64_t num_elements() const { return int64_t(places_.size()); }

  // Elements in logical order, last dimension fastest. Where elements share memory (stride 0) the
  // last one written stays.
  void fill(const std::function<double(int64_t index)>& value);
  void fill(double value);
  void set(int64_t index, double value);
  double get(int64_t index) const;
  std::vector<double> values() const;
  std::vector<uint64_t> bits() const;  // the elements as they lie in memory

  // All of it, moats included, and where the view begins there: for copies on a GPU.
  std::vector<std::byte>& memory() { return memory_; }
  const std::vector<std::byte>& memory() const { return memory_; }
  int64_t offset_bytes() const {
    return view_.data == nullptr ? 0 : static_cast<const std::byte*>(view_.data) - memory_.data();
  }

  void seal();  // remembers every byte
  // In words, what is wrong: a changed input, a byte written outside an output. Empty: nothing.
  std::string damage() const;

 private:
  DType dtype_ = DType::f32;
  bool is_output_ = false;
  TensorView view_;
  int64_t element_bytes_ = 4;
  std::vector<std::byte> memory_;  // elements and moats
  std::vector<std::byte> sealed_;  // inputs: a copy
  std::vector<int64_t> places_;  // for each element, where it lies, counted in elements of memory_
};

}  // namespace keyhole::judge
