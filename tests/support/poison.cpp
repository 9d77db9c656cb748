// tests/support/poison.cpp
// Lays tensors out in poisoned memory and looks at the poison afterwards.
#include "support/poison.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"

namespace keyhole::test {
namespace {

constexpr int64_t kMoatBytes = 4096;
constexpr int64_t kOddStride =
    12'345'677;  // for dimensions of size 1: using it would leave the moat
// Both are NaN in every dtype, read at any 2-byte boundary.
constexpr uint16_t kNanMoat = 0x7ffb;
constexpr uint16_t kCanary = 0xfffd;

// `bytes`, an even number of them, filled with a 16-bit pattern.
void paint(std::byte* to, int64_t bytes, uint16_t pattern) {
  for (int64_t i = 0; i < bytes; i += 2) std::memcpy(to + i, &pattern, 2);
}

struct Strides {
  std::vector<int64_t> of;
  int64_t extent = 0;  // elements from the first to one past the last
  int64_t start = 0;   // where the first element lies
};

// Dense strides when the dimensions are nested in `order`, outermost first; rows of `row` elements.
void nest(const std::vector<int64_t>& shape, const std::vector<int>& order, int64_t row,
          std::vector<int64_t>& strides) {
  int64_t stride = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    strides[size_t(*dim)] = stride;
    stride *= dim == order.rbegin() ? row : std::max<int64_t>(shape[size_t(*dim)], 1);
  }
}

Strides lay_out(const std::vector<int64_t>& shape, Layout layout) {
  const int rank = int(shape.size());
  Strides strides{std::vector<int64_t>(size_t(rank)), 0, 0};
  std::vector<int> order(static_cast<size_t>(rank));
  for (int i = 0; i < rank; ++i) order[size_t(i)] = i;
  int64_t row = std::max<int64_t>(shape[size_t(rank - 1)], 1);
  if (layout == Layout::bshd && rank == 4) std::swap(order[1], order[2]);
  if (layout == Layout::padded) row += 3;
  if (layout == Layout::sliced) row *= 2;
  if (layout == Layout::odd_offset) strides.start = 1;
  nest(shape, order, row, strides.of);
  if (layout == Layout::expanded_heads && rank == 4) strides.of[1] = 0;
  if (layout == Layout::expanded_batch && rank == 4) strides.of[0] = 0;
  strides.extent = 1;
  for (int i = 0; i < rank; ++i) {
    strides.extent += (std::max<int64_t>(shape[size_t(i)], 1) - 1) * strides.of[size_t(i)];
    if (layout == Layout::odd_strides && shape[size_t(i)] == 1) strides.of[size_t(i)] = kOddStride;
  }
  return strides;
}

}  // namespace

double rounded_to(DType dtype, double value) {
  return with_storage(dtype, [&](auto storage) {
    using Storage = decltype(storage);
    using Compute = typename Traits<Storage>::Compute;
    return double(to_f32(Traits<Storage>::from(Compute(value))));
  });
}

PoisonedTensor::PoisonedTensor(DType dtype, std::vector<int64_t> shape, Layout layout,
                               bool is_output)
    : dtype_(dtype), is_output_(is_output), element_bytes_(bytes_of(dtype)) {
  const Strides strides = lay_out(shape, layout);
  const int64_t moat = kMoatBytes / element_bytes_;
  const int64_t first = moat + strides.start;
  const int64_t elements = first + strides.extent + moat;
  memory_.resize(size_t(elements * element_bytes_));
  paint(memory_.data(), int64_t(memory_.size()), is_output ? kCanary : kNanMoat);

  view_.dtype = dtype;
  view_.rank = int(shape.size());
  view_.data = memory_.data() + first * element_bytes_;
  for (size_t i = 0; i < shape.size(); ++i) {
    view_.shape[i] = shape[i];
    view_.strides[i] = strides.of[i];
  }
  // Every element's place, by counting up the indices like an odometer.
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  std::vector<int64_t> index(shape.size());
  places_.reserve(size_t(count));
  for (int64_t i = 0; i < count; ++i) {
    int64_t place = first;
    for (size_t dim = 0; dim < shape.size(); ++dim) place += index[dim] * strides.of[dim];
    places_.push_back(place);
    for (size_t dim = shape.size(); dim-- > 0;) {
      if (++index[dim] < shape[dim]) break;
      index[dim] = 0;
    }
  }
}

void PoisonedTensor::set(int64_t index, double value) {
  with_storage(dtype_, [&](auto storage) {
    using Storage = decltype(storage);
    reinterpret_cast<Storage*>(memory_.data())[places_[size_t(index)]] =
        Traits<Storage>::from(typename Traits<Storage>::Compute(value));
  });
}

double PoisonedTensor::get(int64_t index) const {
  return with_storage(dtype_, [&](auto storage) {
    using Storage = decltype(storage);
    return double(to_f32(reinterpret_cast<const Storage*>(memory_.data())[places_[size_t(index)]]));
  });
}

void PoisonedTensor::fill(const std::function<double(int64_t index)>& value) {
  for (int64_t i = 0; i < num_elements(); ++i) set(i, value(i));
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
  const int64_t first = places_.empty() ? kMoatBytes / element_bytes_ : places_[0];
  return say("an output was written outside, ", (wrong - rest.begin()) - first * element_bytes_,
             " bytes from its first element");
}

}  // namespace keyhole::test
