// src/kernels/cpu/math-inl.h
// exp2 and tanh of a vector, accurate to the last bits of T. NaN stays NaN: this is how the kernels
// notice that a row needs the exact path.
#if defined(KEYHOLE_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_MATH_INL_H_
#undef KEYHOLE_CPU_MATH_INL_H_
#else
#define KEYHOLE_CPU_MATH_INL_H_
#endif

#include <limits>

#include "kernels/cpu/simd.h"

KEYHOLE_SIMD_BEGIN

// (2^r - 1) / r for |r| <= 1/2, interpolated at Chebyshev nodes, with an error below a tenth of the
// last bit of T.
template <class T>
struct Exp2;
template <>
struct Exp2<float> {
  static constexpr float kCoefficients[] = {0.69314718802622877f,   0.24022650760568126f,
                                            0.055503571142190782f,  0.0096180825572778524f,
                                            0.0013390863364671234f, 0.00015453162945120691f};
  // Adding this rounds to an integer n and leaves n + 127 in the low bits.
  static constexpr float kMagic = 0x1.8p23f + 127;
  static constexpr int kShift = 23;
  static constexpr float kLowest = -126, kHighest = 127;
};
template <>
struct Exp2<double> {
  static constexpr double kCoefficients[] = {
      0.69314718055994529,    0.24022650695910097,    0.055504108664821597,
      0.0096181291076068882,  0.0013333558146416936,  0.0001540353044173605,
      1.5252733829836119e-05, 1.3215442587921689e-06, 1.0178062445845774e-07,
      7.0725859492692234e-09, 4.4549605981865186e-10};
  static constexpr double kMagic = 0x1.8p52 + 1023;
  static constexpr int kShift = 52;
  static constexpr double kLowest = -1022, kHighest = 1023;
};

// x = n + r with integer n and |r| <= 1/2: gives 2^n and 2^r - 1. x within [kLowest, kHighest].
template <class D>
HWY_INLINE void split_exp2(D d, hn::Vec<D> x, hn::Vec<D>& power, hn::Vec<D>& fraction) {
  using T = hn::TFromD<D>;
  using E = Exp2<T>;
  constexpr int kLast = int(sizeof(E::kCoefficients) / sizeof(T)) - 1;
  const auto magic = hn::Set(d, E::kMagic);
  const auto shifted = hn::Add(x, magic);
  const auto r = hn::Sub(x, hn::Sub(shifted, magic));
  auto sum = hn::Set(d, E::kCoefficients[kLast]);
  for (int i = kLast - 1; i >= 0; --i) sum = hn::MulAdd(sum, r, hn::Set(d, E::kCoefficients[i]));
  fraction = hn::Mul(sum, r);
  power = shift_into_exponent<E::kShift>(d, shifted);
}

// 2^x for x <= 0; results below the smallest normal number are 0.
template <class D>
HWY_INLINE hn::Vec<D> exp2_of_negative(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  hn::Vec<D> power, fraction;
  split_exp2(d, x, power, fraction);
  const auto result = hn::MulAdd(power, fraction, power);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, Exp2<T>::kLowest)), result);
}

// 2^x for any x; results above 2^kHighest are infinite.
template <class D>
HWY_INLINE hn::Vec<D> exp2_of(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto overflows = hn::Lt(hn::Set(d, Exp2<T>::kHighest), x);
  const auto infinity = hn::Set(d, std::numeric_limits<T>::infinity());
  return hn::IfThenElse(overflows, infinity, exp2_of_negative(d, x));
}

// tanh(x) = e / (e + 2) with e = exp(2 |x|) - 1, which loses no accuracy near 0.
template <class D>
HWY_INLINE hn::Vec<D> tanh_of(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto zero = hn::Zero(d), one = hn::Set(d, T(1)), limit = hn::Set(d, T(60));
  const auto is_negative = hn::Lt(x, zero);
  const auto magnitude = hn::IfThenElse(is_negative, hn::Sub(zero, x), x);
  const auto doubled = hn::Mul(magnitude, hn::Set(d, T(2.8853900817779268147)));  // 2 log2(e)
  hn::Vec<D> power, fraction;
  split_exp2(d, hn::IfThenElse(hn::Lt(limit, doubled), limit, doubled), power, fraction);
  const auto e = hn::MulAdd(power, fraction, hn::Sub(power, one));
  const auto result = hn::Div(e, hn::Add(e, hn::Set(d, T(2))));
  return hn::IfThenElse(is_negative, hn::Sub(zero, result), result);
}

KEYHOLE_SIMD_END
#endif  // toggle
