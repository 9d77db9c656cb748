// src/judge/poisoned_tensor.cpp
// Lays tensors out in poisoned memory and looks at the poison afterwards.
#include "judge/poisoned_tensor.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"

namespace keyhole::judge {
namespace {

// `bytes` of them, filled with a 16-bit pattern.
void paint(std::byte* to, int64_t bytes, uint16_t pattern) {
  for (int64_t i = 0; i < bytes; i += 2) {
    std::memcpy(to + i, &pattern, size_t(std::min<int64_t>(2, bytes - i)));
  }
}

}  // namespace

PoisonedTensor::PoisonedTensor(const Placement& placed, bool is_output)
    : dtype_(placed.view.dtype),
      is_output_(is_output),
      view_(placed.view),
      element_bytes_(bytes_of(dtype_)),
      memory_(size_t(placed.bytes())) {
  // A copy on a GPU lies the same within 16 bytes: alignment is part of a case.
  KEYHOLE_ASSERT(reinterpret_cast<uintptr_t>(memory_.data()) % 16 == 0,
                 "the memory of a poisoned tensor is not aligned");
  paint(memory_.data(), placed.bytes(), is_output ? kCanary : kNanMoat);
  view_.data = memory_.data() + placed.first_byte();
  // Every element's place, by counting up the indices like an odometer.
  const int64_t count = view_.num_elements();
  int64_t index[TensorView::kMaxRank] = {}, at = placed.first;
  places_.reserve(size_t(count));
  for (int64_t i = 0; i < count; ++i) {
    places_.push_back(at);
    for (int dim = view_.rank; dim-- > 0;) {
      at += view_.strides[dim];
      if (++index[dim] < view_.shape[dim]) break;
      at -= index[dim] * view_.strides[dim], index[dim] = 0;
    }
  }
}

void PoisonedTensor::set(int64_t index, double value) {
  with_index_storage(dtype_, [&](auto storage) {
    using Storage = decltype(storage);
    reinterpret_cast<Storage*>(memory_.data())[places_[size_t(index)]] =
        Traits<Storage>::from(typename Traits<Storage>::Compute(value));
  });
}

double PoisonedTensor::get(int64_t index) const {
  return with_index_storage(dtype_, [&](auto storage) {
    using Storage = decltype(storage);
    return double(to_f32(reinterpret_cast<const Storage*>(memory_.data())[places_[size_t(index)]]));
  });
}

void PoisonedTensor::fill(const std::function<double(int64_t index)>& value) {
  for (int64_t i = 0; i < num_elements(); ++i) set(i, value(i));
}

void PoisonedTensor::fill(double value) {
  fill([value](int64_t) { return value; });
}

std::vector<double> PoisonedTensor::values() const {
  std::vector<double> values(places_.size());
  for (int64_t i = 0; i < num_elements(); ++i) values[size_t(i)] = get(i);
  return values;
}

std::vector<uint64_t> PoisonedTensor::bits() const {
  std::vector<uint64_t> bits(places_.size());
  for (size_t i = 0; i < places_.size(); ++i) {
    std::memcpy(&bits[i], memory_.data() + places_[i] * element_bytes_, size_t(element_bytes_));
  }
  return bits;
}

void PoisonedTensor::seal() {
  if (!is_output_) sealed_ = memory_;
}

std::string PoisonedTensor::damage() const {
  if (!is_output_) return sealed_ == memory_ ? "" : "an input was written to";
  std::vector<std::byte> rest = memory_;  // what remains when the elements are painted over
  for (const int64_t place : places_) {
    paint(rest.data() + place * element_bytes_, element_bytes_, kCanary);
  }
  std::vector<std::byte> untouched(rest.size());
  paint(untouched.data(), int64_t(untouched.size()), kCanary);
  const auto wrong = std::mismatch(rest.begin(), rest.end(), untouched.begin()).first;
  if (wrong == rest.end()) return "";
  return say("an output was written outside, ", (wrong - rest.begin()) - offset_bytes(),
             " bytes from its first element");
}

}  // namespace keyhole::judge
