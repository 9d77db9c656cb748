// tests/base/int_math_test.cpp
// Division that rounds one way for every sign, and arithmetic that refuses to wrap.
#include "base/int_math.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keyhole {
namespace {

TEST(IntMath, DivisionRoundsTheSameWayOnBothSidesOfZero) {
  for (int64_t b = 1; b <= 9; ++b) {
    for (int64_t a = -40; a <= 40; ++a) {
      EXPECT_EQ(floor_div(a, b), int64_t(std::floor(double(a) / double(b)))) << a << " / " << b;
      EXPECT_EQ(ceil_div(a, b), int64_t(std::ceil(double(a) / double(b)))) << a << " / " << b;
      EXPECT_EQ(floor_div(a, b) * b + floor_mod(a, b), a) << a << " % " << b;
      EXPECT_GE(floor_mod(a, b), 0);
      EXPECT_LT(floor_mod(a, b), b);
      EXPECT_EQ(round_up(a, b) % b, 0);
      EXPECT_GE(round_up(a, b), a);
      EXPECT_LT(round_up(a, b), a + b);
    }
  }
}

TEST(IntMath, RefusesToWrap) {
  EXPECT_EQ(checked_mul(INT64_MAX / 2, 2, "x"), INT64_MAX - 1);
  EXPECT_EQ(checked_add(INT64_MAX - 1, 1, "x"), INT64_MAX);
  EXPECT_EQ(narrow(INT32_MIN, "x"), INT32_MIN);
  EXPECT_THROW(checked_mul(INT64_MAX / 2, 3, "x"), Error);
  EXPECT_THROW(checked_add(INT64_MAX, 1, "x"), Error);
  EXPECT_THROW(narrow(int64_t{INT32_MAX} + 1, "x"), Error);
  try {
    checked_mul(int64_t{1} << 40, int64_t{1} << 40, "tensor size");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "tensor size: 1099511627776 x 1099511627776 does not fit 64 bits");
    EXPECT_EQ(error.kind(), ErrorKind::usage);
  }
}

}  // namespace
}  // namespace keyhole
