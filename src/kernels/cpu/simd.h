// src/kernels/cpu/simd.h
// The vector vocabulary of the cpu kernels, which are written once, in Highway's words. With
// Highway a file that includes this is compiled once per instruction set (see primitives.cpp);
// without it the same words mean GCC's vector extensions, at the width the compiler was told to
// use. Included again for each instruction set, hence the guard by toggle.
#if defined(KEYHOLE_CPU_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_SIMD_H_
#undef KEYHOLE_CPU_SIMD_H_
#else
#define KEYHOLE_CPU_SIMD_H_
#endif

#include "base/dtype.h"

#if KEYHOLE_HAVE_HWY

#include "hwy/highway.h"

#define KEYHOLE_SIMD_BEGIN \
  HWY_BEFORE_NAMESPACE();  \
  namespace keyhole::cpu { \
  namespace HWY_NAMESPACE {
#define KEYHOLE_SIMD_END \
  }                      \
  }                      \
  HWY_AFTER_NAMESPACE();

KEYHOLE_SIMD_BEGIN
namespace hn = hwy::HWY_NAMESPACE;

// 64 bytes at most: rows and panels are padded for that.
template <class T>
using Tag = hn::CappedTag<T, 64 / sizeof(T)>;

#if HWY_TARGET <= HWY_AVX3 || (HWY_TARGET & HWY_NEON)
inline constexpr int kVectorRegisters = 32;
#else
inline constexpr int kVectorRegisters = 16;
#endif

// One vector of elements as stored, in the type they are computed in.
template <class D>
HWY_INLINE hn::Vec<D> load_as(D d, const hn::TFromD<D>* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_as(D d, const Half* p) {
  const hn::Rebind<hwy::float16_t, D> half;
  return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
}
template <class D>
HWY_INLINE hn::Vec<D> load_as(D d, const BFloat16* p) {
  const hn::Rebind<uint16_t, D> bits;
  const hn::Rebind<uint32_t, D> wide;
  const auto loaded = hn::LoadU(bits, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, loaded)));
}

// The other way: rounds to nearest, ties to even.
HWY_INLINE void store_as(hn::Vec<Tag<float>> v, Tag<float> d, float* p) { hn::StoreU(v, d, p); }
HWY_INLINE void store_as(hn::Vec<Tag<double>> v, Tag<double> d, double* p) { hn::StoreU(v, d, p); }
HWY_INLINE void store_as(hn::Vec<Tag<float>> v, Tag<float>, Half* p) {
  const hn::Rebind<hwy::float16_t, Tag<float>> half;
  hn::StoreU(hn::DemoteTo(half, v), half, reinterpret_cast<hwy::float16_t*>(p));
}
HWY_INLINE void store_as(hn::Vec<Tag<float>> v, Tag<float> d, BFloat16* p) {
  alignas(64) float lanes[64 / sizeof(float)];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = to_bf16(lanes[i]);
}

// The low bits of the mantissa, moved to where the exponent is.
template <int kShift, class D>
HWY_INLINE hn::Vec<D> shift_into_exponent(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> bits;
  return hn::BitCast(d, hn::ShiftLeft<kShift>(hn::BitCast(bits, v)));
}

// Bits of one bitmap row to a mask: bit i is lane i.
template <class D>
HWY_INLINE hn::Mask<D> mask_from_bits(D d, uint64_t bits) {
  return hn::LoadMaskBits(d, reinterpret_cast<const uint8_t*>(&bits));
}

// Four rows of four elements become four columns.
template <class Storage>
HWY_INLINE void load_columns_4x4(const Storage* src, int64_t src_stride, float* dst,
                                 int64_t dst_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 4; ++c) dst[c * dst_stride + r] = to_f32(src[r * src_stride + c]);
#else
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> wide;
  const auto r0 = load_as(d, src), r1 = load_as(d, src + src_stride);
  const auto r2 = load_as(d, src + 2 * src_stride), r3 = load_as(d, src + 3 * src_stride);
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, dst);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, dst + dst_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, dst + 2 * dst_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, dst + 3 * dst_stride);
#endif
}
KEYHOLE_SIMD_END

#else  // no Highway
#include "kernels/cpu/simd_plain.h"
#endif

#endif  // toggle
