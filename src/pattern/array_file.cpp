// src/pattern/array_file.cpp
// Index arrays and boolean matrices out of .npy files; errors name the file.
#include "pattern/array_file.h"

#include <cstring>

#include "base/check.h"
#include "base/npy.h"

namespace keyhole {

namespace {

template <class Number>
std::vector<Number> numbers_of(const NpyArray& array) {
  std::vector<Number> numbers(array.data.size() / sizeof(Number));
  if (!numbers.empty()) std::memcpy(numbers.data(), array.data.data(), array.data.size());
  return numbers;
}

}  // namespace

std::vector<int64_t> read_integers(const std::string& path, int max_dims) {
  const NpyArray array = read_npy(path);
  KEYHOLE_CHECK(array.dtype == "<i4" || array.dtype == "<i8", path, ": its dtype is \"",
                array.dtype, "\"; accepted are \"<i4\" and \"<i8\"");
  KEYHOLE_CHECK(!array.shape.empty() && array.shape.size() <= size_t(max_dims), path, ": it has ",
                array.shape.size(), " dimensions; accepted ",
                max_dims == 1 ? "is 1" : say("are 1 to ", max_dims));
  if (array.dtype == "<i8") return numbers_of<int64_t>(array);
  const std::vector<int32_t> numbers = numbers_of<int32_t>(array);
  return {numbers.begin(), numbers.end()};
}

MaskRows read_mask(const std::string& path) {
  const NpyArray array = read_npy(path);
  KEYHOLE_CHECK(array.dtype == "|b1" || array.dtype == "|u1", path, ": its dtype is \"",
                array.dtype, "\"; a mask is \"|b1\" (bool) or \"|u1\"");
  KEYHOLE_CHECK(array.shape.size() == 2, path, ": it has ", array.shape.size(),
                " dimensions; a mask is [q_len, k_len]");
  return {numbers_of<uint8_t>(array), array.shape[0], array.shape[1]};
}

}  // namespace keyhole
