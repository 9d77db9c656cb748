// src/base/dtype.h
// Dtypes: their storage types, rounding units and conversions. fp16, bf16 and e4m3 are storage only
// and always computed in fp32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "keyhole/tensor.h"

namespace keyhole {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};

// Half the distance from 1 to the next larger number: the largest error of one rounding.
constexpr double rounding_unit(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 0x1p-11;
    case DType::bf16:
      return 0x1p-8;
    case DType::f32:
      return 0x1p-24;
    case DType::f64:
      return 0x1p-53;
    case DType::e4m3:
      return 0x1p-4;
  }
  return 0;
}

constexpr float to_f32(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
constexpr float to_f32(float x) { return x; }
constexpr double to_f32(double x) { return x; }  // fp64 is computed in fp64

constexpr float to_f32(Half x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu, fraction = x.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = float(fraction) * 0x1p-24f;  // subnormal or zero
  return sign ? -magnitude : magnitude;
}

constexpr float to_f32(E4m3 x) {
  const uint32_t sign = uint32_t(x.bits & 0x80u) << 24;
  const uint32_t exponent = (x.bits >> 3) & 0xfu, fraction = x.bits & 0x7u;
  if ((x.bits & 0x7fu) == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 120) << 23 | fraction << 20);
  const float magnitude = float(fraction) * 0x1p-9f;  // subnormal or zero
  return sign ? -magnitude : magnitude;
}

// Round to nearest, ties to even; NaN stays NaN, overflow becomes infinity.
constexpr BFloat16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {uint16_t(bits >> 16 | 0x40u)};
  return {uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
constexpr Half to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {uint16_t(sign | 0x7e00u)};   // NaN
  if (magnitude >= 0x477ff000u) return {uint16_t(sign | 0x7c00u)};  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // subnormal in fp16: adding 0.5 lets the FPU round at bit 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return {uint16_t(sign | (rounded - 0x38000000u) >> 13)};
}

// The same, but e4m3 has no infinity: what rounds to more than 448, which is beyond 464, becomes
// NaN.
constexpr E4m3 to_e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint8_t sign = uint8_t(bits >> 24 & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x43e80000u) return {uint8_t(sign | 0x7fu)};  // above 464, or NaN
  if (magnitude < 0x3c800000u) {  // subnormal: adding 2^14 lets the FPU round at bit 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return {uint8_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u))};
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
  return {uint8_t(sign | (rounded - 0x3c000000u) >> 20)};
}

// The storage type of each dtype, its compute type, and the conversion back.
template <class Storage>
struct Traits;
template <>
struct Traits<Half> {
  using Compute = float;
  static constexpr DType dtype = DType::f16;
  static constexpr Half from(float x) { return to_f16(x); }
};
template <>
struct Traits<BFloat16> {
  using Compute = float;
  static constexpr DType dtype = DType::bf16;
  static constexpr BFloat16 from(float x) { return to_bf16(x); }
};
template <>
struct Traits<E4m3> {
  using Compute = float;
  static constexpr DType dtype = DType::e4m3;
  static constexpr E4m3 from(float x) { return to_e4m3(x); }
};
template <>
struct Traits<float> {
  using Compute = float;
  static constexpr DType dtype = DType::f32;
  static constexpr float from(float x) { return x; }
};
template <>
struct Traits<double> {
  using Compute = double;
  static constexpr DType dtype = DType::f64;
  static constexpr double from(double x) { return x; }
};

// Calls visit(Storage{}) with the storage type of a dtype that attention computes with.
template <class Visitor>
decltype(auto) with_storage(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DType::f16:
      return visit(Half{});
    case DType::bf16:
      return visit(BFloat16{});
    case DType::f64:
      return visit(double{});
    case DType::f32:
      return visit(float{});
    case DType::e4m3:
      break;
  }
  throw Error(ErrorKind::usage, say("dtype ", to_string(dtype),
                                    " is for indexers only; accepted "
                                    "are f32, bf16, f16 and f64, convert the tensor first"));
}
// The same for the tensors of an indexer (select.h), which may be e4m3.
template <class Visitor>
decltype(auto) with_index_storage(DType dtype, Visitor&& visit) {
  if (dtype == DType::e4m3) return visit(E4m3{});
  return with_storage(dtype, std::forward<Visitor>(visit));
}

}  // namespace keyhole
