// src/kernels/cpu/compress-inl.h
// Appends the lanes of a mask to lists of scores and keys.
#if defined(KEYHOLE_CPU_COMPRESS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_COMPRESS_INL_H_
#undef KEYHOLE_CPU_COMPRESS_INL_H_
#else
#define KEYHOLE_CPU_COMPRESS_INL_H_
#endif

#include "kernels/cpu/config.h"
#include "kernels/cpu/simd.h"

KEYHOLE_SIMD_BEGIN

#if KEYHOLE_HAVE_HWY
inline constexpr int32_t kLaneNumbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static_assert(kMaxLanes<float> <= 16);
#endif

// The keys of the lanes of a vector of scores: consecutive ones, or those of a list.
struct ConsecutiveKeys {
  int32_t first;
  int32_t operator[](size_t lane) const { return first + int32_t(lane); }
#if KEYHOLE_HAVE_HWY
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d) const {
    return hn::Add(hn::Set(d, first), hn::LoadU(d, kLaneNumbers));  // Iota may go through memory
  }
#endif
};
struct ListedKeys {
  const int32_t* keys;
  int32_t operator[](size_t lane) const { return keys[lane]; }
#if KEYHOLE_HAVE_HWY
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d) const {
    return hn::LoadU(d, keys);
  }
#endif
};

// Appends the lanes of a mask to lists of scores and keys, which have room for a whole vector.
template <class T, class FromKeys>
HWY_INLINE int64_t append(hn::Mask<Tag<T>> mask, hn::Vec<Tag<T>> v, FromKeys from, T* scores,
                          int32_t* keys) {
  const Tag<T> d;
#if KEYHOLE_HAVE_HWY
  if constexpr (sizeof(T) == sizeof(int32_t)) {
    const hn::RebindToSigned<Tag<T>> whole;
    // Not CompressStore, which is slow on some processors: there is room for all lanes.
    hn::StoreU(hn::Compress(from.load(whole), hn::RebindMask(whole, mask)), whole, keys);
    hn::StoreU(hn::Compress(v, mask), d, scores);
    return int64_t(hn::CountTrue(d, mask));
  }
#endif
  alignas(64) T lanes[64 / sizeof(T)], kept[64 / sizeof(T)];
  hn::StoreU(v, d, lanes);
  hn::StoreU(hn::IfThenElseZero(mask, hn::Set(d, T(1))), d, kept);
  int64_t count = 0;
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    if (kept[i] == 0) continue;
    keys[count] = from[i];
    scores[count++] = lanes[i];
  }
  return count;
}

// The same for lists of keys alone.
template <class T, class FromKeys>
HWY_INLINE int64_t append_keys(hn::Mask<Tag<T>> mask, FromKeys from, int32_t* keys) {
  const Tag<T> d;
#if KEYHOLE_HAVE_HWY
  if constexpr (sizeof(T) == sizeof(int32_t)) {
    const hn::RebindToSigned<Tag<T>> whole;
    hn::StoreU(hn::Compress(from.load(whole), hn::RebindMask(whole, mask)), whole, keys);
    return int64_t(hn::CountTrue(d, mask));
  }
#endif
  alignas(64) T kept[64 / sizeof(T)];
  hn::StoreU(hn::IfThenElseZero(mask, hn::Set(d, T(1))), d, kept);
  int64_t count = 0;
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    if (kept[i] != 0) keys[count++] = from[i];
  }
  return count;
}

// The same for lists of scores alone.
template <class T>
HWY_INLINE int64_t append_scores(hn::Mask<Tag<T>> mask, hn::Vec<Tag<T>> v, T* scores) {
  const Tag<T> d;
#if KEYHOLE_HAVE_HWY
  hn::StoreU(hn::Compress(v, mask), d, scores);
  return int64_t(hn::CountTrue(d, mask));
#else
  int64_t count = 0;
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    if (mask.raw[i] != 0) scores[count++] = v.raw[i];
  }
  return count;
#endif
}

KEYHOLE_SIMD_END
#endif  // toggle
