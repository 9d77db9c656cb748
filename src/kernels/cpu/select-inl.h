// src/kernels/cpu/select-inl.h
// Selections in vectors: scores from products, and the best of a row.
#if defined(KEYHOLE_CPU_SELECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_SELECT_INL_H_
#undef KEYHOLE_CPU_SELECT_INL_H_
#else
#define KEYHOLE_CPU_SELECT_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "base/int_math.h"
#include "base/ordered_bits.h"
#include "kernels/cpu/compress-inl.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/select_primitives.h"
#include "kernels/cpu/simd.h"

KEYHOLE_SIMD_BEGIN

template <class T>
void relu_sum(const T* products, int64_t heads, const T* w, const T* scales, T* scores) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto zero = hn::Zero(d);
  for (int64_t x = 0; x < kPanel; x += lanes) {
    auto sum = zero;
    for (int64_t h = 0; h < heads; ++h) {
      const auto product = hn::LoadU(d, products + h * kPanel + x);
      const auto positive = hn::IfThenZeroElse(hn::Lt(product, zero), product);
      sum = hn::MulAdd(hn::Set(d, w[h]), positive, sum);
    }
    hn::StoreU(hn::Mul(sum, hn::LoadU(d, scales + x)), d, scores + x);
  }
}

template <class T>
void relu_gradient(T* products, int64_t heads, const T* w, const T* ds, T* dw) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto zero = hn::Zero(d);
  for (int64_t h = 0; h < heads; ++h, products += kPanel) {
    const auto weight = hn::Set(d, w[h]);
    auto sum = zero;
    for (int64_t x = 0; x < kPanel; x += lanes) {
      const auto product = hn::LoadU(d, products + x), slope = hn::LoadU(d, ds + x);
      const auto is_positive = hn::Lt(zero, product);
      // Infinity times the slope of a pair that is not listed, 0, would be NaN.
      const auto counts = hn::And(is_positive, hn::Ne(slope, zero));
      sum = hn::Add(sum, hn::IfThenElseZero(counts, hn::Mul(slope, product)));
      hn::StoreU(hn::IfThenElseZero(is_positive, hn::Mul(slope, weight)), d, products + x);
    }
    if (dw != nullptr) dw[h] += hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

template <class T>
void add_powers(const T* scores, int64_t heads, const T* lse, T* weights) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t x = 0; x < kPanel; x += lanes) {
    auto sum = hn::LoadU(d, weights + x);
    for (int64_t h = 0; h < heads; ++h) {
      const auto score = hn::LoadU(d, scores + h * kPanel + x);
      sum = hn::Add(sum, exp2_of(d, hn::Sub(score, hn::Set(d, lse[h]))));
    }
    hn::StoreU(sum, d, weights + x);
  }
}

// One word of bits: 64 scores.
template <class T>
HWY_INLINE int64_t collect_word(const T* scores, int32_t first_entry, uint64_t word,
                                hn::Vec<Tag<T>> low, T* kept, int32_t* kept_entries) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  int64_t count = 0;
  for (int64_t x = 0; x < 64; x += lanes) {
    const auto v = hn::LoadU(d, scores + x);
    const auto mask = hn::And(hn::Lt(low, v), mask_from_bits(d, word >> x));
    count += append<T>(mask, v, ConsecutiveKeys{first_entry + int32_t(x)}, kept + count,
                       kept_entries + count);
  }
  return count;
}

template <class T>
int64_t collect_above(const T* scores, int64_t entries, const uint64_t* bits, T low, T* kept,
                      int32_t* kept_entries) {
  const auto lows = hn::Set(Tag<T>(), low);
  int64_t count = 0, first = 0;
  for (; first + 64 <= entries; first += 64) {
    const uint64_t word = bits[first / 64];
    if (word == 0) continue;
    count += collect_word(scores + first, int32_t(first), word, lows, kept + count,
                          kept_entries + count);
  }
  if (first < entries) {
    alignas(64) T last[64];
    std::fill_n(std::copy_n(scores + first, entries - first, last), 64 - (entries - first), T(0));
    count += collect_word(last, int32_t(first), bits[first / 64], lows, kept + count,
                          kept_entries + count);
  }
  return count;
}

// Halves the range of numbers, as integers of their order, that the threshold lies in, and drops
// what lies outside.
template <class T>
Threshold<T> kth_largest(T* scores, int64_t count, int64_t k) {
  using Bits = typename OrderedBits<T>::Bits;
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto zero = hn::Zero(d);
  auto tops = hn::Set(d, scores[0]), negated = hn::Set(d, -scores[0]);
  std::fill_n(scores + count, lanes, scores[0]);
  for (int64_t i = 0; i < count; i += lanes) {
    const auto v = hn::LoadU(d, scores + i);
    tops = hn::Max(tops, v);
    negated = hn::Max(negated, hn::Sub(zero, v));
  }
  Bits low = ordered_bits(-hn::GetLane(hn::MaxOfLanes(d, negated)));
  Bits high = ordered_bits(hn::GetLane(hn::MaxOfLanes(d, tops)));
  int64_t num_above = 0;  // numbers above `high`; those are dropped
  while (low < high) {
    const Bits middle = low + (high - low) / 2 + 1;
    const auto pivot = hn::Set(d, number_of_bits<T>(middle));
    std::fill_n(scores + count, lanes, -std::numeric_limits<T>::infinity());
    int64_t num_low = 0;
    for (int64_t i = 0; i < count; i += lanes) {
      num_low += int64_t(hn::CountTrue(d, hn::Lt(hn::LoadU(d, scores + i), pivot)));
    }
    num_low -= round_up(count, lanes) - count;  // the filling
    const bool is_high = num_above + count - num_low >= k;
    if (is_high) {
      low = middle;
    } else {
      num_above += count - num_low;
      high = middle - 1;
    }
    if ((is_high ? num_low : count - num_low) == 0) continue;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i += lanes) {
      const auto v = hn::LoadU(d, scores + i);
      const auto is_low = hn::Lt(v, pivot);
      kept += append_scores<T>(is_high ? hn::Not(is_low) : is_low, v, scores + kept);
    }
    count = is_high ? count - num_low : num_low;
  }
  return {number_of_bits<T>(low), num_above};
}

template <class T>
void take_best(T* scores, const int32_t* entries, int64_t count, int64_t k,
               const Threshold<T>& threshold, int32_t* taken) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto value = hn::Set(d, threshold.value);
  std::fill_n(scores + count, lanes, -std::numeric_limits<T>::infinity());
  int64_t num_equal = k - threshold.num_above;  // of those that equal the threshold, still to take
  for (int64_t i = 0; i < count; i += lanes) {
    const auto v = hn::LoadU(d, scores + i);
    const auto is_above = hn::Lt(value, v), is_taken = hn::Not(hn::Lt(v, value));
    const int64_t equal = int64_t(hn::CountTrue(d, is_taken)) - int64_t(hn::CountTrue(d, is_above));
    if (equal == 0 || num_equal == 0) {
      taken += append_keys<T>(is_above, ListedKeys{entries + i}, taken);
    } else if (equal <= num_equal) {
      taken += append_keys<T>(is_taken, ListedKeys{entries + i}, taken);
      num_equal -= equal;
    } else {
      for (int64_t x = i; x < i + lanes; ++x) {
        const bool is_equal = scores[x] == threshold.value;
        if (!(scores[x] > threshold.value) && !(is_equal && num_equal > 0)) continue;
        num_equal -= is_equal ? 1 : 0;
        *taken++ = entries[x];
      }
    }
  }
}

KEYHOLE_SIMD_END
#endif  // toggle
