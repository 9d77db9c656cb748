// src/kernels/cpu/simd_plain.h
// A stand-in for Highway: the few of its operations that the cpu kernels use, with GCC's vector
// extensions (which clang has too). The width follows from the compiler flags; there is no run-time
// dispatch.
#pragma once

#include <bit>
#include <cstring>

#include "base/dtype.h"

#define HWY_INLINE inline __attribute__((always_inline))
#define HWY_ATTR
#define KEYHOLE_SIMD_BEGIN \
  namespace keyhole::cpu { \
  namespace plain {
#define KEYHOLE_SIMD_END \
  }                      \
  }

KEYHOLE_SIMD_BEGIN
namespace hn {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <class T>
struct Bits;
template <>
struct Bits<float> {
  using Signed = int32_t;
};
template <>
struct Bits<double> {
  using Signed = int64_t;
};

template <class T>
struct Lane {
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  typedef typename Bits<T>::Signed Integers __attribute__((vector_size(kVectorBytes)));
};
template <class T>
struct VecOf {
  typename Lane<T>::Vector raw;
};
template <class T>
struct MaskOf {
  typename Lane<T>::Integers raw;  // all ones: true
};
template <class T>
struct TagOf {
  using Element = T;
};
template <class D>
using Vec = VecOf<typename D::Element>;
template <class D>
using TFromD = typename D::Element;
template <class D>
using Mask = MaskOf<typename D::Element>;

template <class T>
constexpr size_t Lanes(TagOf<T>) {
  return kVectorBytes / sizeof(T);
}
template <class T>
constexpr size_t MaxLanes(TagOf<T> d) {
  return Lanes(d);
}
template <class T>
HWY_INLINE VecOf<T> Set(TagOf<T>, T x) {
  return {typename Lane<T>::Vector{} + x};
}
template <class T>
HWY_INLINE VecOf<T> Zero(TagOf<T>) {
  return {typename Lane<T>::Vector{}};
}
template <class T>
HWY_INLINE VecOf<T> LoadU(TagOf<T>, const T* p) {
  VecOf<T> v;
  std::memcpy(&v.raw, p, sizeof v.raw);
  return v;
}
template <class T>
HWY_INLINE void StoreU(VecOf<T> v, TagOf<T>, T* p) {
  std::memcpy(p, &v.raw, sizeof v.raw);
}
template <class T>
HWY_INLINE VecOf<T> Add(VecOf<T> a, VecOf<T> b) {
  return {a.raw + b.raw};
}
template <class T>
HWY_INLINE VecOf<T> Sub(VecOf<T> a, VecOf<T> b) {
  return {a.raw - b.raw};
}
template <class T>
HWY_INLINE VecOf<T> Mul(VecOf<T> a, VecOf<T> b) {
  return {a.raw * b.raw};
}
template <class T>
HWY_INLINE VecOf<T> Div(VecOf<T> a, VecOf<T> b) {
  return {a.raw / b.raw};
}
template <class T>
HWY_INLINE VecOf<T> MulAdd(VecOf<T> a, VecOf<T> b, VecOf<T> c) {
  return {a.raw * b.raw + c.raw};
}
template <class T>
HWY_INLINE VecOf<T> NegMulAdd(VecOf<T> a, VecOf<T> b, VecOf<T> c) {
  return {c.raw - a.raw * b.raw};
}
template <class T>
HWY_INLINE MaskOf<T> Lt(VecOf<T> a, VecOf<T> b) {
  return {a.raw < b.raw};
}
template <class T>
HWY_INLINE MaskOf<T> Ne(VecOf<T> a, VecOf<T> b) {
  return {a.raw != b.raw};
}
template <class T>
HWY_INLINE MaskOf<T> Not(MaskOf<T> mask) {
  return {~mask.raw};
}
template <class T>
HWY_INLINE MaskOf<T> And(MaskOf<T> a, MaskOf<T> b) {
  return {a.raw & b.raw};
}
template <class T>
HWY_INLINE bool AllTrue(TagOf<T> d, MaskOf<T> mask) {
  for (size_t i = 0; i < Lanes(d); ++i) {
    if (mask.raw[i] == 0) return false;
  }
  return true;
}
template <class T>
HWY_INLINE size_t CountTrue(TagOf<T> d, MaskOf<T> mask) {
  size_t count = 0;
  for (size_t i = 0; i < Lanes(d); ++i) count += mask.raw[i] != 0 ? 1 : 0;
  return count;
}
template <class T>
HWY_INLINE VecOf<T> IfThenElse(MaskOf<T> mask, VecOf<T> yes, VecOf<T> no) {
  return {mask.raw ? yes.raw : no.raw};
}
template <class T>
HWY_INLINE VecOf<T> IfThenElseZero(MaskOf<T> mask, VecOf<T> yes) {
  return IfThenElse(mask, yes, VecOf<T>{});
}
template <class T>
HWY_INLINE VecOf<T> IfThenZeroElse(MaskOf<T> mask, VecOf<T> no) {
  return IfThenElse(mask, VecOf<T>{}, no);
}
template <class T>
HWY_INLINE VecOf<T> Max(VecOf<T> a, VecOf<T> b) {
  return IfThenElse(Lt(a, b), b, a);
}
template <class T>
HWY_INLINE T GetLane(VecOf<T> v) {
  return v.raw[0];
}
template <class T>
HWY_INLINE VecOf<T> SumOfLanes(TagOf<T> d, VecOf<T> v) {
  T sum = v.raw[0];
  for (size_t i = 1; i < Lanes(d); ++i) sum += v.raw[i];
  return Set(d, sum);
}
template <class T>
HWY_INLINE VecOf<T> MaxOfLanes(TagOf<T> d, VecOf<T> v) {
  T top = v.raw[0];
  for (size_t i = 1; i < Lanes(d); ++i) top = v.raw[i] > top ? v.raw[i] : top;
  return Set(d, top);
}

}  // namespace hn

template <class T>
using Tag = hn::TagOf<T>;

#if defined(__x86_64__) && !defined(__AVX512F__)
inline constexpr int kVectorRegisters = 16;
#else
inline constexpr int kVectorRegisters = 32;
#endif
#if defined(__x86_64__)
inline constexpr bool kOperandsInMemory = true;
#else
inline constexpr bool kOperandsInMemory = false;
#endif

template <class T, class Storage>
HWY_INLINE hn::VecOf<T> load_as(Tag<T> d, const Storage* p) {
  hn::VecOf<T> v;
  for (size_t i = 0; i < hn::Lanes(d); ++i) v.raw[i] = to_f32(p[i]);
  return v;
}
template <class T, class Storage>
HWY_INLINE void store_as(hn::VecOf<T> v, Tag<T> d, Storage* p) {
  for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = Traits<Storage>::from(v.raw[i]);
}

template <class Storage>
HWY_INLINE void store_factors(hn::VecOf<float> v, hn::VecOf<float> next, Tag<float> d, Storage* p) {
  store_as(v, d, p);
  store_as(next, d, p + hn::Lanes(d));
}

template <class Storage>
HWY_INLINE void zip_factors(hn::VecOf<float> v, hn::VecOf<float> next, Tag<float> d, uint32_t* to) {
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    const uint32_t high = Traits<Storage>::from(next.raw[i]).bits;
    to[i] = Traits<Storage>::from(v.raw[i]).bits | high << 16;
  }
}

template <int kShift, class T>
HWY_INLINE hn::VecOf<T> shift_into_exponent(Tag<T>, hn::VecOf<T> v) {
  using Integers = typename hn::Lane<T>::Integers;
  return {std::bit_cast<typename hn::Lane<T>::Vector>(std::bit_cast<Integers>(v.raw) << kShift)};
}

template <class T>
HWY_INLINE hn::MaskOf<T> mask_from_bits(Tag<T> d, uint64_t bits) {
  hn::MaskOf<T> mask;
  for (size_t i = 0; i < hn::Lanes(d); ++i) mask.raw[i] = -int(bits >> i & 1);
  return mask;
}

template <class T>
HWY_INLINE uint64_t bits_of_mask(Tag<T> d, hn::MaskOf<T> mask) {
  uint64_t bits = 0;
  for (size_t i = 0; i < hn::Lanes(d); ++i) bits |= uint64_t(mask.raw[i] & 1) << i;
  return bits;
}

inline constexpr int64_t kSquare = 4;

template <class Storage>
HWY_INLINE void load_columns_square(const Storage* src, int64_t src_stride, float factor,
                                    float* dst, int64_t dst_stride) {
  for (int r = 0; r < kSquare; ++r) {
    for (int c = 0; c < kSquare; ++c) {
      dst[c * dst_stride + r] = to_f32(src[r * src_stride + c]) * factor;
    }
  }
}
HWY_INLINE void load_word_columns_square(const uint16_t* src, int64_t src_stride, uint32_t* dst,
                                         int64_t dst_stride) {
  for (int r = 0; r < kSquare; ++r) {
    for (int c = 0; c < kSquare; ++c) {
      std::memcpy(dst + c * dst_stride + r, src + r * src_stride + 2 * c, sizeof *dst);
    }
  }
}
KEYHOLE_SIMD_END
