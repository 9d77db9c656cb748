// src/base/ordered_bits.h
// Numbers as unsigned integers in the same order, for selection by digits.
#pragma once

#include <bit>
#include <cstdint>

#include "base/weight_rule.h"

namespace keyhole {

template <class Number>
struct OrderedBits;
template <>
struct OrderedBits<float> {
  using Bits = uint32_t;
};
template <>
struct OrderedBits<double> {
  using Bits = uint64_t;
};

// a < b is ordered_bits(a) < ordered_bits(b); equal numbers have equal bits. Not for NaN.
template <class Number>
KEYHOLE_RULE typename OrderedBits<Number>::Bits ordered_bits(Number x) {
  using Bits = typename OrderedBits<Number>::Bits;
  constexpr Bits kSign = Bits(1) << (8 * sizeof(Bits) - 1);
  const Bits bits = std::bit_cast<Bits>(x + Number(0));  // -0 becomes 0
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
// The inverse.
template <class Number>
KEYHOLE_RULE Number number_of_bits(typename OrderedBits<Number>::Bits ordered) {
  using Bits = typename OrderedBits<Number>::Bits;
  constexpr Bits kSign = Bits(1) << (8 * sizeof(Bits) - 1);
  return std::bit_cast<Number>((ordered & kSign) != 0 ? Bits(ordered & ~kSign) : Bits(~ordered));
}

}  // namespace keyhole
