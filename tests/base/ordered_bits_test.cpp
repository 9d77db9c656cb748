// tests/base/ordered_bits_test.cpp
#include "base/ordered_bits.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace keyhole {
namespace {

template <class Number>
void expect_order() {
  using Limits = std::numeric_limits<Number>;
  const std::vector<Number> ascending = {
      -Limits::infinity(),  Limits::lowest(), -1, -Limits::min(), -Limits::denorm_min(), 0,
      Limits::denorm_min(), Number(0.5),      1,  Limits::max(),  Limits::infinity()};
  for (const Number a : ascending) {
    EXPECT_EQ(number_of_bits<Number>(ordered_bits(a)), a);
    for (const Number b : ascending) EXPECT_EQ(ordered_bits(a) < ordered_bits(b), a < b);
  }
  EXPECT_EQ(ordered_bits(Number(-0.)), ordered_bits(Number(0)));
}

TEST(OrderedBits, HaveTheOrderOfTheNumbers) {
  expect_order<float>();
  expect_order<double>();
}

}  // namespace
}  // namespace keyhole
