// tests/support/numbers.h
// The elements of one input tensor as a function of their number alone: the host and a GPU make the
// same bits, in any order. Every value is one rounded product, or has its fused addition spelled
// out, so that no compiler can round it otherwise.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "base/random.h"
#include "support/on_both.h"

namespace keyhole::test {

struct Numbers {
  enum class Kind : uint8_t {
    constant,  // `size`
    normal,    // times `size`
    integers,  // -3 ... 3
    ties,      // one of two values
    around,    // `size`, give or take a few percent; a sign for each row where row_signs says so
  };
  Kind kind = Kind::normal;
  uint64_t seed = 0;
  double size = 1;
  int64_t columns = 1;  // of a row
  bool has_row_signs = false;
  uint64_t sign_seed = 0;

  // What stands out from the rest. Numbers of rows and elements count in logical order.
  int64_t spike_row = -1;  // -1: none
  uint64_t spike_seed = 0;
  double spike_size = 0;
  int64_t nan_at = -1;
  const uint8_t* is_spoilt = nullptr;  // [rows]: NaN and infinity there; in the reader's memory
  uint64_t spoil_seed = 0;
};

// Unequal shares: equal ones would all be rounded alike, which no kernel's sum is made for.
constexpr double spike_share(uint64_t seed, int64_t column) {
  return 0.5 + Random::at(seed, column).uniform();
}

KEYHOLE_ON_BOTH inline double number_at(const Numbers& numbers, int64_t index) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const int64_t row = index / numbers.columns;
  if (index == numbers.nan_at) return kNan;
  if (numbers.is_spoilt != nullptr && numbers.is_spoilt[row] != 0) {
    const int64_t which = Random::at(numbers.spoil_seed, index).below(4);
    return which == 0 ? kInfinity : which == 1 ? -kInfinity : kNan;
  }
  if (row == numbers.spike_row) {
    return numbers.spike_size * spike_share(numbers.spike_seed, index % numbers.columns);
  }
  Random random = Random::at(numbers.seed, index);
  switch (numbers.kind) {
    case Numbers::Kind::constant:
      break;
    case Numbers::Kind::normal:
      return numbers.size * random.quick_normal();
    case Numbers::Kind::integers:
      return double(random.between(-3, 3));
    case Numbers::Kind::ties:
      return random.chance(50) ? 0.5 : -0.25;
    case Numbers::Kind::around: {
      const bool flips =
          numbers.has_row_signs && Random(numbers.sign_seed + uint64_t(row)).chance(50);
      return (flips ? -numbers.size : numbers.size) * std::fma(0.02, random.quick_normal(), 1.0);
    }
  }
  return numbers.size;
}

}  // namespace keyhole::test
