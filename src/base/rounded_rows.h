// src/base/rounded_rows.h
// Rows of fp32 rounded to bf16, which tensor cores multiply, and how far such a product may be from
// that of the rows themselves:
//
//   q . k - q' . k' = q . (k - k') + (q - q') . k'
//   |q . k - q' . k'| <= |q| |k - k'| + |q - q'| |k'|          lengths of rows are all it takes
//
// Entmax in fp32 looks for its keys among products of rounded rows (kernels/mma/entmax_round.h).
//
// For the host and for devices. Lengths are computed in fp64, where no square of an fp32 number
// overflows or vanishes.
#pragma once

#include <cmath>
#include <limits>

#include "base/dtype.h"
#include "base/weight_rule.h"

namespace keyhole {

// Finite numbers stay finite. What is not a normal number becomes 0, so that it does not matter
// what a processor does with it.
KEYHOLE_RULE BFloat16 rounded_for_products(float x) {
  constexpr float kLargest = 0x1.fep127f;  // of bf16
  const float size = std::abs(x);
  if (size < std::numeric_limits<float>::min()) return {0};
  if (size > kLargest && size <= std::numeric_limits<float>::max()) {
    return to_bf16(x > 0 ? kLargest : -kLargest);
  }
  return to_bf16(x);
}

// Of a row: the squared lengths of what it was, of what it became, and of the difference.
struct SquaredLengths {
  double whole = 0, rounded = 0, lost = 0;

  KEYHOLE_RULE void add(float x, BFloat16 rounded_x) {
    const double before = double(x), after = double(to_f32(rounded_x));
    whole += before * before;
    rounded += after * after;
    lost += (before - after) * (before - after);
  }
  // Otherwise a number of the row is NaN or infinite.
  KEYHOLE_RULE bool is_finite() const { return whole < std::numeric_limits<double>::infinity(); }
};

// The largest lengths of some keys, each for itself: at least as large as they are.
struct LargestKey {
  float rounded = 0, lost = 0;
};

// x as a float that is not smaller; x is at least 0.
KEYHOLE_RULE float not_less(double x) {
  if (x == 0) return 0;
  constexpr double kSmallest = std::numeric_limits<float>::min();
  const double more = x * (1 + 0x1p-20);
  return float(more > kSmallest ? more : kSmallest);
}

// How far the product of a rounded query and a rounded key may be from that of the query and the
// key, if each key is no longer than `keys` says. Infinite: nothing is known, because a number of
// the query is not finite or sums might exceed the range of fp32.
KEYHOLE_RULE float product_margin(const SquaredLengths& query, const LargestKey& keys) {
  // Tensor cores add up to 17 numbers at a time, and drop what is below 2^-22 of the largest of
  // them, or less; so does the sum. No number and no sum is larger than the product of the lengths.
  // So 128 columns lose 8 * 18 * 2^-22 of it. A plain sum in fp32 loses 128 * 2^-24. Both together
  // are less than this.
  constexpr double kLostBySums = 0x1p-14;
  // Products and sums that are no normal numbers may become 0: 256 times 2^-126.
  constexpr double kLostByUnderflow = 0x1p-116;
  constexpr double kMostSize = 1e37;
  const double size = std::sqrt(query.rounded) * double(keys.rounded);
  if (!(size <= kMostSize)) return std::numeric_limits<float>::infinity();
  return not_less(std::sqrt(query.whole) * double(keys.lost) +
                  std::sqrt(query.lost) * double(keys.rounded) + kLostBySums * size +
                  kLostByUnderflow);
}

}  // namespace keyhole
