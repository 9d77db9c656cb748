// src/base/int_math.h
// Integer arithmetic that reports overflow, and division with a defined rounding.
#pragma once

#include <cstdint>
#include <limits>

#include "base/check.h"

namespace keyhole {

constexpr int64_t floor_div(int64_t a, int64_t b) {  // b > 0
  return a / b - (a % b < 0 ? 1 : 0);
}
constexpr int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }
constexpr int64_t floor_mod(int64_t a, int64_t b) { return a - b * floor_div(a, b); }
constexpr int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

static_assert(floor_div(-1, 4) == -1 && floor_mod(-1, 4) == 3 && ceil_div(-1, 4) == 0);

// Throws Error(usage) that names `what` instead of overflowing.
inline int64_t checked_mul(int64_t a, int64_t b, const char* what) {
  int64_t product;
  KEYHOLE_CHECK(!__builtin_mul_overflow(a, b, &product), what, ": ", a, " x ", b,
                " does not fit 64 bits");
  return product;
}
inline int64_t checked_add(int64_t a, int64_t b, const char* what) {
  int64_t sum;
  KEYHOLE_CHECK(!__builtin_add_overflow(a, b, &sum), what, ": ", a, " + ", b,
                " does not fit 64 bits");
  return sum;
}

inline int32_t narrow(int64_t value, const char* what) {
  KEYHOLE_CHECK(
      value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max(),
      what, ": ", value, " does not fit 32 bits");
  return int32_t(value);
}

}  // namespace keyhole
