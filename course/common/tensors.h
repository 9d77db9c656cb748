// course/common/tensors.h
// Numbers to try kernels on, and how far two results are apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace course {

// Numbers that are nearly normal, with mean 0 and variance 1: the same on every machine, which the
// distributions of the standard library do not promise. The sum of twelve uniform numbers from 0 to
// 1 has variance 1.
inline std::vector<float> random_values(std::size_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += generator() / 4294967296.0;
    value = static_cast<float>(sum);
  }
  return values;
}

// The largest |a[i] - b[i]|; NaN where one of them is NaN, so that a lost number is not taken for a
// small error.
template <class A, class B>
double largest_difference(const A& a, const B& b) {
  double largest = 0;
  for (std::size_t i = 0; i < std::size(a); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace course
