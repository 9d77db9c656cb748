// tests/base/dtype_test.cpp
// Conversions between fp32 and the dtypes of 16 and 8 bits: all values there and back, rounding at
// every midpoint, and the names and sizes.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace keyhole {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class Storage>
void expect_exact_round_trips() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const Storage x = {uint16_t(bits)};
    const float value = to_f32(x);
    const Storage back = Traits<Storage>::from(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_f32(back))) << bits;
      EXPECT_EQ(back.bits >> 15, bits >> 15) << "the sign of a NaN";
    } else {
      EXPECT_EQ(back.bits, bits) << value;
    }
  }
}
TEST(DType, EveryHalfSurvivesTheWayThroughF32) { expect_exact_round_trips<Half>(); }
TEST(DType, EveryBFloat16SurvivesTheWayThroughF32) { expect_exact_round_trips<BFloat16>(); }

// Between two neighbours the nearer one is taken, and from the middle the even one.
template <class Storage>
void expect_nearest_even(uint16_t largest_finite) {
  for (uint32_t bits = 0; bits < largest_finite; ++bits) {
    const float low = to_f32(Storage{uint16_t(bits)}), high = to_f32(Storage{uint16_t(bits + 1)});
    const float middle = float((double(low) + double(high)) / 2);  // exact: one more bit is enough
    const float below = std::nextafter(middle, 0.0f), above = std::nextafter(middle, kInf);
    const uint16_t even = uint16_t(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(Traits<Storage>::from(middle).bits, even) << middle;
    ASSERT_EQ(Traits<Storage>::from(below).bits, bits) << below;
    ASSERT_EQ(Traits<Storage>::from(above).bits, bits + 1) << above;
    ASSERT_EQ(Traits<Storage>::from(-middle).bits, even | 0x8000) << -middle;
  }
}
TEST(DType, HalfRoundsToNearestEven) { expect_nearest_even<Half>(0x7bff); }
TEST(DType, BFloat16RoundsToNearestEven) { expect_nearest_even<BFloat16>(0x7f7f); }

// The definition of e4m3fn, number by number: sign, four bits of exponent, three of fraction.
double e4m3_by_definition(int bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const double sign = bits & 0x80 ? -1 : 1;
  if ((bits & 0x7f) == 0x7f) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(fraction, -9);
  return sign * std::ldexp(8 + fraction, exponent - 10);
}

TEST(DType, EveryE4m3IsItsDefinitionAndSurvivesTheWayThroughF32) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = to_f32(E4m3{uint8_t(bits)});
    const double want = e4m3_by_definition(bits);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
    } else {
      EXPECT_EQ(double(value), want) << bits;
      EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
    }
    EXPECT_EQ(to_e4m3(value).bits, bits) << value;
  }
  EXPECT_EQ(to_f32(E4m3{0x7e}), 448.0f);
  EXPECT_EQ(to_f32(E4m3{0x01}), 0x1p-9f);
}

TEST(DType, E4m3RoundsToNearestEven) {
  for (int bits = 0; bits < 0x7e; ++bits) {
    const float low = to_f32(E4m3{uint8_t(bits)}), high = to_f32(E4m3{uint8_t(bits + 1)});
    const float middle = (low + high) / 2;
    const int even = bits % 2 == 0 ? bits : bits + 1;
    EXPECT_EQ(to_e4m3(middle).bits, even) << middle;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, 0.0f)).bits, bits) << middle;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, kInf)).bits, bits + 1) << middle;
    EXPECT_EQ(to_e4m3(-middle).bits, even | 0x80) << -middle;
  }
}

TEST(DType, E4m3HasNoInfinity) {
  EXPECT_EQ(to_e4m3(464.0f).bits, 0x7e) << "halfway to 480 is rounded to even";
  EXPECT_EQ(to_e4m3(-464.0f).bits, 0xfe);
  for (const float x : {std::nextafter(464.0f, kInf), 480.0f, 1e30f, kInf, std::nanf("")}) {
    EXPECT_EQ(to_e4m3(x).bits, 0x7f) << x;
    EXPECT_EQ(to_e4m3(-x).bits, 0xff) << -x;
  }
  EXPECT_EQ(to_e4m3(0x1p-149f).bits, 0);
  EXPECT_EQ(to_e4m3(-0.0f).bits, 0x80);
}

// Attention has no kernels for it, and must not get any by accident.
TEST(DType, OnlyIndexersVisitE4m3) {
  EXPECT_THROW(with_storage(DType::e4m3, [](auto) {}), Error);
  with_index_storage(DType::e4m3, [](auto storage) {
    EXPECT_EQ(Traits<decltype(storage)>::dtype, DType::e4m3);
    EXPECT_EQ(int64_t(sizeof storage), bytes_of(DType::e4m3));
  });
  with_index_storage(
      DType::bf16, [](auto storage) { EXPECT_EQ(Traits<decltype(storage)>::dtype, DType::bf16); });
}

TEST(DType, TooLargeBecomesInfinity) {
  EXPECT_EQ(to_f32(to_f16(65519.996f)), 65504.0f);
  EXPECT_EQ(to_f32(to_f16(65520.0f)), kInf);
  EXPECT_EQ(to_f32(to_f16(-1e30f)), -kInf);
  EXPECT_EQ(to_f32(to_f16(kInf)), kInf);
  EXPECT_EQ(to_f32(to_bf16(std::numeric_limits<float>::max())), kInf);
  EXPECT_EQ(to_f32(to_bf16(-kInf)), -kInf);
  EXPECT_TRUE(std::isnan(to_f32(to_f16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(to_f32(to_bf16(std::bit_cast<float>(0x7f800001u)))))
      << "a NaN whose upper bits are all zero";
}

TEST(DType, RoundingUnitIsHalfTheStepAboveOne) {
  EXPECT_EQ(to_f32(Half{0x3c01}) - 1, 2 * rounding_unit(DType::f16));
  EXPECT_EQ(to_f32(BFloat16{0x3f81}) - 1, 2 * rounding_unit(DType::bf16));
  EXPECT_EQ(to_f32(E4m3{0x39}) - 1, 2 * rounding_unit(DType::e4m3));
  EXPECT_EQ(std::numeric_limits<float>::epsilon(), 2 * rounding_unit(DType::f32));
  EXPECT_EQ(std::numeric_limits<double>::epsilon(), 2 * rounding_unit(DType::f64));
}

TEST(DType, NamesSizesAndStorageAgree) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
    with_storage(dtype, [&](auto storage) {
      EXPECT_EQ(Traits<decltype(storage)>::dtype, dtype);
      EXPECT_EQ(int64_t(sizeof storage), bytes_of(dtype)) << to_string(dtype);
    });
  }
  EXPECT_EQ(std::string(to_string(DType::f16)) + to_string(DType::bf16), "f16bf16");
  EXPECT_EQ(std::string(to_string(DType::f32)) + to_string(DType::f64), "f32f64");
  EXPECT_EQ(std::string(to_string(DType::e4m3)), "e4m3");
}

}  // namespace
}  // namespace keyhole
