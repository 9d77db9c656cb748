// cli/check/hostile.cpp
#include "cli/check/hostile.h"

#include <cstring>

#include "base/dtype.h"
#include "base/int_math.h"

namespace keyhole::cli {
namespace {

constexpr int64_t kMoatBytes = 4096;
constexpr std::byte kNan{0xff};  // all ones is NaN in every dtype

}  // namespace

HostileTensor::HostileTensor(DType dtype, std::vector<int64_t> shape, bool swaps, bool is_aligned)
    : dtype_(dtype) {
  const size_t rank = shape.size();
  std::vector<int64_t> strides(rank, 1);
  // Odd paddings, so that nothing is aligned; or multiples of 8 elements, which are 16 bytes or
  // more.
  const auto padded = [&](int64_t count, int64_t odd) {
    return is_aligned ? round_up(count + odd, int64_t{8}) : count + odd;
  };
  int64_t extent = rank > 1 ? padded(shape.back(), 3) : shape.back();
  if (rank == 3) {
    strides[1] = extent, strides[0] = padded(extent * shape[1], 5);
    extent = strides[0] * shape[0];
  } else if (rank == 4) {
    const size_t inner = swaps ? 1 : 2, outer = swaps ? 2 : 1;
    strides[inner] = extent;
    strides[outer] = padded(extent * shape[inner], 7);
    strides[0] = padded(strides[outer] * shape[outer], 1);
    extent = strides[0] * shape[0];
  }
  memory_.assign(size_t(extent * bytes_of(dtype) + 2 * kMoatBytes), kNan);
  view_.data = memory_.data() + kMoatBytes;
  view_.dtype = dtype;
  view_.rank = int(rank);
  for (size_t i = 0; i < rank; ++i) view_.shape[i] = shape[i], view_.strides[i] = strides[i];

  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  places_.reserve(size_t(count));
  std::vector<int64_t> at(rank,
                          0);  // counts like an odometer: divisions would take longer than checks
  int64_t place = 0;
  for (int64_t index = 0; index < count; ++index) {
    places_.push_back(place);
    for (size_t i = rank; i-- > 0;) {
      place += strides[i];
      if (++at[i] < shape[i]) break;
      place -= at[i] * strides[i], at[i] = 0;
    }
  }
}

double HostileTensor::get(int64_t index) const {
  return with_storage(dtype_, [&](auto storage) -> double {
    return to_f32(static_cast<const decltype(storage)*>(view_.data)[places_[size_t(index)]]);
  });
}

void HostileTensor::set(int64_t index, double value) {
  with_storage(dtype_, [&](auto storage) {
    using Storage = decltype(storage);
    using Compute = typename Traits<Storage>::Compute;
    static_cast<Storage*>(view_.data)[places_[size_t(index)]] =
        Traits<Storage>::from(Compute(value));
  });
}

void HostileTensor::fill_normal(Random& random) {
  for (int64_t i = 0; i < size(); ++i) set(i, random.normal());
}
void HostileTensor::fill(double value) {
  for (int64_t i = 0; i < size(); ++i) set(i, value);
}

bool HostileTensor::is_moat_intact() const {
  std::vector<std::byte> copy = memory_;
  const size_t bytes = size_t(bytes_of(dtype_));
  for (const int64_t place : places_) {
    std::memset(copy.data() + kMoatBytes + size_t(place) * bytes, int(kNan), bytes);
  }
  for (const std::byte byte : copy) {
    if (byte != kNan) return false;
  }
  return true;
}

std::vector<double> HostileTensor::values() const {
  std::vector<double> all;
  all.reserve(places_.size());
  for (int64_t i = 0; i < size(); ++i) all.push_back(get(i));
  return all;
}

}  // namespace keyhole::cli
