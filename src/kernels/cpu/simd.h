// src/kernels/cpu/simd.h
// The vector operations of the cpu kernels, which are written once, against Highway's API. With
// Highway a file that includes this is compiled once per instruction set (see primitives.cpp).
// Without it the same names stand for GCC's vector extensions, at the width of the compiler flags.
// Included again for each instruction set, hence the toggle guard.
#if defined(KEYHOLE_CPU_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_SIMD_H_
#undef KEYHOLE_CPU_SIMD_H_
#else
#define KEYHOLE_CPU_SIMD_H_
#endif

#include <cstring>
#include <type_traits>

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

// Whether a product can take an operand from memory, without a register of its own.
inline constexpr bool kOperandsInMemory = HWY_ARCH_X86;

// Before AVX2, x86 has no fp16 conversion. Highway's emulation truncates and does not handle
// infinity, so our own conversion is used there, lane by lane.
#if (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2) || HWY_TARGET == HWY_SCALAR
inline constexpr bool kConvertsHalf = false;
#else
inline constexpr bool kConvertsHalf = true;
#endif

// One vector of elements as stored, in the type they are computed in.
template <class D>
HWY_INLINE hn::Vec<D> load_as(D d, const hn::TFromD<D>* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load_as(D d, const Half* p) {
  if constexpr (kConvertsHalf) {
    const hn::Rebind<hwy::float16_t, D> half;
    return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(p)));
  } else {
    alignas(64) float lanes[64 / sizeof(float)];
    for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = to_f32(p[i]);
    return hn::Load(d, lanes);
  }
}
template <class D>
HWY_INLINE hn::Vec<D> load_as(D d, const BFloat16* p) {
  const hn::Rebind<uint16_t, D> bits;
  const hn::Rebind<uint32_t, D> wide;
  const auto loaded = hn::LoadU(bits, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, loaded)));
}

// Words of two 16-bit numbers.
template <class D>
HWY_INLINE hn::Vec<D> load_as(D d, const uint16_t* p) {
  const hn::Repartition<uint16_t, D> halves;
  return hn::BitCast(d, hn::LoadU(halves, p));
}

// The other way: rounds to nearest, ties to even.
HWY_INLINE void store_as(hn::Vec<Tag<float>> v, Tag<float> d, float* p) { hn::StoreU(v, d, p); }
HWY_INLINE void store_as(hn::Vec<Tag<double>> v, Tag<double> d, double* p) { hn::StoreU(v, d, p); }
HWY_INLINE void store_as(hn::Vec<Tag<float>> v, Tag<float> d, Half* p) {
  if constexpr (kConvertsHalf) {
    const hn::Rebind<hwy::float16_t, Tag<float>> half;
    hn::StoreU(hn::DemoteTo(half, v), half, reinterpret_cast<hwy::float16_t*>(p));
  } else {
    alignas(64) float lanes[64 / sizeof(float)];
    hn::Store(v, d, lanes);
    for (size_t i = 0; i < hn::Lanes(d); ++i) p[i] = to_f16(lanes[i]);
  }
}
HWY_INLINE void store_as(hn::Vec<Tag<float>> v, Tag<float>, BFloat16* p) {
  const hn::RebindToUnsigned<Tag<float>> words;
  const hn::Rebind<uint16_t, Tag<float>> halves;
  const auto bits = hn::BitCast(words, v);
  const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::Add(bits, hn::Add(is_odd, hn::Set(words, 0x7fff)));
  const auto nan = hn::Or(bits, hn::Set(words, 0x400000));
  const auto is_nan = hn::RebindMask(words, hn::Ne(v, v));
  const auto stored = hn::ShiftRight<16>(hn::IfThenElse(is_nan, nan, rounded));
  hn::StoreU(hn::TruncateTo(halves, stored), halves, reinterpret_cast<uint16_t*>(p));
}

// Two vectors of weights or score gradients, rounded to 16 bits before they enter a product. Only a
// NaN with all low bits set would not stay one, and numbers of 16 bits give none.
HWY_INLINE void store_factors(hn::Vec<Tag<float>> v, hn::Vec<Tag<float>> next, Tag<float> d,
                              Half* p) {
  store_as(v, d, p);
  store_as(next, d, p + hn::Lanes(d));
}
HWY_INLINE void store_factors(hn::Vec<Tag<float>> v, hn::Vec<Tag<float>> next, Tag<float> d,
                              BFloat16* p) {
#if HWY_TARGET <= HWY_AVX3  // ties away from zero: half the instructions
  const hn::RebindToUnsigned<Tag<float>> bits;
  const hn::Repartition<uint16_t, Tag<float>> halves;
  const auto half = hn::Set(bits, 0x8000u);
  const auto high =
      hn::ConcatOdd(halves, hn::BitCast(halves, hn::Add(hn::BitCast(bits, next), half)),
                    hn::BitCast(halves, hn::Add(hn::BitCast(bits, v), half)));
  hn::StoreU(high, halves, reinterpret_cast<uint16_t*>(p));
#else
  store_as(v, d, p);
  store_as(next, d, p + hn::Lanes(d));
#endif
}

// The same as words: lanes of `v` low, lanes of `next` high.
template <class Storage>
HWY_INLINE void zip_factors(hn::Vec<Tag<float>> v, hn::Vec<Tag<float>> next, Tag<float> d,
                            uint32_t* to) {
  const hn::RebindToUnsigned<Tag<float>> words;
  if constexpr (std::is_same_v<Storage, BFloat16>) {
    const auto half = hn::Set(words, 0x8000u), high = hn::Set(words, 0xffff0000u);
    const auto rounded = hn::Add(hn::BitCast(words, v), half);
    const auto rounded_next = hn::Add(hn::BitCast(words, next), half);
    hn::StoreU(hn::Or(hn::ShiftRight<16>(rounded), hn::And(rounded_next, high)), words, to);
  } else {
    const hn::Rebind<uint16_t, Tag<float>> bits;
    alignas(64) Half low[64 / sizeof(float)], high[64 / sizeof(float)];
    store_as(v, d, low);
    store_as(next, d, high);
    const auto load = [=](const Half* p) HWY_ATTR {
      return hn::PromoteTo(words, hn::LoadU(bits, reinterpret_cast<const uint16_t*>(p)));
    };
    hn::StoreU(hn::Or(load(low), hn::ShiftLeft<16>(load(high))), words, to);
  }
}

// Moves the low bits of the mantissa to the exponent.
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

// The other way.
template <class D>
HWY_INLINE uint64_t bits_of_mask(D d, hn::Mask<D> mask) {
  using Bits = std::conditional_t<(hn::MaxLanes(D()) > 8), uint16_t, uint8_t>;
  uint8_t bytes[8];
  hn::StoreMaskBits(d, mask, bytes);
  Bits bits;
  std::memcpy(&bits, bytes, sizeof bits);
  return bits;
}

#if HWY_TARGET == HWY_SCALAR
inline constexpr int64_t kSquare = 1;

template <class Storage>
HWY_INLINE void load_columns_square(const Storage* src, int64_t, float factor, float* dst,
                                    int64_t) {
  *dst = to_f32(*src) * factor;
}
HWY_INLINE void load_word_columns_square(const uint16_t* src, int64_t, uint32_t* dst, int64_t) {
  *dst = src[0] | uint32_t{src[1]} << 16;
}
#else
// Transposes each 4 x 4 block of four vectors.
template <class V>
HWY_INLINE void transpose_in_blocks(V& r0, V& r1, V& r2, V& r3) {
  const hn::DFromV<V> d;
  const hn::Repartition<double, decltype(d)> wide;
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
  r0 = hn::BitCast(d, hn::InterleaveLower(wide, low01, low23));
  r1 = hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23));
  r2 = hn::BitCast(d, hn::InterleaveLower(wide, high01, high23));
  r3 = hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23));
}

// A vector of blocks of four elements; block b is read at src + b * step. Loads place blocks at
// little cost; shuffles across a vector would be slower.
template <class D, class Storage>
HWY_INLINE hn::Vec<D> load_blocks(D d, const Storage* src, int64_t step) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return load_as(d, src);
  } else {
    const hn::Half<D> half;
    constexpr int64_t kBlocks = hn::MaxLanes(hn::Half<D>()) / 4;
    return hn::Combine(d, load_blocks(half, src + kBlocks * step, step),
                       load_blocks(half, src, step));
  }
}

// Transposes kSquare rows of kSquare lanes. load(row, col): a vector whose block b holds columns
// col
// ... col + 3 of row row + 4 b.
inline constexpr int64_t kSquare = HWY_MAX_BYTES / sizeof(float);

template <class Lane, class Load>
HWY_INLINE void transpose_square(Load load, Lane* dst, int64_t dst_stride) {
  const hn::FixedTag<Lane, kSquare> d;
#pragma GCC unroll 4
  for (int64_t c = 0; c < kSquare; c += 4) {
    hn::Vec<decltype(d)> v[4];
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) v[j] = load(d, j, c);
    transpose_in_blocks(v[0], v[1], v[2], v[3]);  // v[j]: column c + j of all rows
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) hn::StoreU(v[j], d, dst + (c + j) * dst_stride);
  }
}

// Elements, each times the factor.
template <class Storage>
HWY_INLINE void load_columns_square(const Storage* src, int64_t src_stride, float factor,
                                    float* dst, int64_t dst_stride) {
  const auto load = [=](auto d, int64_t row, int64_t col) HWY_ATTR {
    return hn::Mul(load_blocks(d, src + row * src_stride + col, 4 * src_stride),
                   hn::Set(d, factor));
  };
  transpose_square(load, dst, dst_stride);
}
// Words of two 16-bit numbers.
HWY_INLINE void load_word_columns_square(const uint16_t* src, int64_t src_stride, uint32_t* dst,
                                         int64_t dst_stride) {
  const auto load = [=](auto d, int64_t row, int64_t col) HWY_ATTR {
    return load_blocks(d, src + row * src_stride + 2 * col, 4 * src_stride);
  };
  transpose_square(load, dst, dst_stride);
}
#endif
KEYHOLE_SIMD_END

#else  // no Highway
#include "kernels/cpu/simd_plain.h"
#endif

#endif  // toggle
