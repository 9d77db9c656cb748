// src/kernels/cpu/collect-inl.h
// Which scores of a row of entmax or top_k may have weight. Most are below the row's bound, so a
// scan is as fast as it passes over those.
#if defined(KEYHOLE_CPU_COLLECT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_COLLECT_INL_H_
#undef KEYHOLE_CPU_COLLECT_INL_H_
#else
#define KEYHOLE_CPU_COLLECT_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/compress-inl.h"
#include "kernels/cpu/entmax-inl.h"
#include "kernels/cpu/entmax_primitives.h"
#include "kernels/cpu/simd.h"

KEYHOLE_SIMD_BEGIN

// A set of columns of a row, as words of bits, the first column lowest. Where a vector has fewer
// than 8 lanes, its bits have a byte of their own.
template <class T>
struct ColumnWords {
  static constexpr int64_t kLanes = hn::MaxLanes(Tag<T>());
  static constexpr int64_t kPerByte = std::min<int64_t>(kLanes, 8), kPerWord = 8 * kPerByte;
  static constexpr int64_t kVectors = kPerWord / kLanes, kShift = 64 / kVectors;
  static constexpr uint64_t kAll = ~uint64_t{0} / 0xff * ((1 << kPerByte) - 1);
  static_assert(kPerWord <= kPanel);  // how far a row is read beyond its end

  static constexpr int64_t column(int bit) { return bit / 8 * kPerByte + bit % 8; }

  uint64_t words[kScanKeys / kPerWord];
};

// Reads and compares without branches; all words of a row, so that the loads of many are under way.
template <class T>
HWY_INLINE ColumnWords<T> columns_not_below(const T* scores, int64_t cols, T limit) {
  using Columns = ColumnWords<T>;
  const Tag<T> d;
  const auto limits = hn::Set(d, limit);
  Columns found;
  for (int64_t w = 0, left = cols; left > 0; ++w, left -= Columns::kPerWord) {
    const T* const from = scores + w * Columns::kPerWord;
    uint64_t is_low = 0;
#pragma GCC unroll 16
    for (int64_t i = 0; i < Columns::kVectors; ++i) {
      const auto low = hn::Lt(hn::LoadU(d, from + i * Columns::kLanes), limits);
      is_low |= bits_of_mask(d, low) << (i * Columns::kShift);
    }
    uint64_t columns = Columns::kAll;
    if (left < Columns::kPerWord) {
      columns &= ~(~uint64_t{0} << (left / Columns::kLanes * Columns::kShift));
    }
    found.words[w] = ~is_low & columns;
  }
  return found;
}

// Appends the scores of row r, times the factor, that are not below its bound, and perhaps a few
// that are a little below. limit: what is below it before scaling is below the bound after.
template <bool kScales, class T>
HWY_INLINE void append_row(const T* scores, int64_t cols, T factor, T limit, int32_t first_key,
                           int64_t r, const Candidates<T>& to) {
  using Columns = ColumnWords<T>;
  constexpr int kFew = 3;
  const Tag<T> d;
  const auto bounds = hn::Set(d, to.bound[r]);
  T* const row_scores = to.scores + r * to.room + to.count[r];
  int32_t* const row_keys = to.keys + r * to.room + to.count[r];
  const Columns found = columns_not_below(scores, cols, limit);
  int64_t count = 0;
  for (int64_t begin = 0, w = 0; begin < cols; begin += Columns::kPerWord, ++w) {
    uint64_t word = found.words[w];
    const int in_word = std::popcount(word);
    if (in_word > kFew) [[unlikely]] {
      const int64_t end = std::min(cols, begin + Columns::kPerWord);
      for (int64_t c = begin; c < end; c += Columns::kLanes) {
        const auto v = hn::LoadU(d, scores + c);
        const auto score = kScales ? hn::Mul(v, hn::Set(d, factor)) : v;
        const ConsecutiveKeys keys = {first_key + int32_t(c)};
        count += append<T>(hn::Not(hn::Lt(score, bounds)), score, keys, row_scores + count,
                           row_keys + count);
      }
      continue;
    }
    // No branch predictor knows how many of the columns are found. So kFew are written in any case,
    // and as many are kept as there are.
#pragma GCC unroll 4
    for (int i = 0; i < kFew; ++i) {
      const int bit = std::countr_zero(word | uint64_t{1} << 63);  // of an empty word, too
      const int64_t c = begin + Columns::column(bit);
      row_scores[count + i] = kScales ? scores[c] * factor : scores[c];
      row_keys[count + i] = first_key + int32_t(c);
      word &= word - 1;
    }
    count += in_word;
  }
  to.count[r] += count;
}

// Raises the bound of row r, which has none, from the largest scores of groups of columns: their
// lambda is a lower bound of the row's, and what is below top_k of them is below top_k keys.
// Nothing is known where no column is attended, or a score is not finite.
template <bool kScales, class T>
HWY_INLINE void set_first_bound(const T* scores, int64_t cols, T factor, const FirstBound& how,
                                int64_t r, const Candidates<T>& to) {
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  constexpr int kVectors = 4, kSteps = 3;
  constexpr int64_t kLanes = ColumnWords<T>::kLanes, kGroups = kVectors * kLanes;
  const Tag<T> d;
  hn::Vec<Tag<T>> tops[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) tops[i] = hn::Set(d, kLowest);
  for (int64_t c = 0; c < cols; c += kGroups) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      const int64_t from = c + i * kLanes;
      if (from >= cols) break;
      const auto v = hn::LoadU(d, scores + from);
      tops[i] = hn::Max(tops[i], kScales ? hn::Mul(v, hn::Set(d, factor)) : v);
    }
  }
  const auto largest = hn::Max(hn::Max(tops[0], tops[1]), hn::Max(tops[2], tops[3]));
  const T top = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (!(top > kLowest && top <= std::numeric_limits<T>::max())) return;
  alignas(kAlignment) T list[kGroups + kMaxLanes<T>];
  if (!how.power.is_softmax()) {
    hn::StoreU(largest, d, list);
    T lambda = top;
    for (int step = 0; step < kSteps; ++step) lambda = raise(how.power, list, kLanes, lambda);
    if (!std::isfinite(lambda)) return;
    to.bound[r] = std::max(to.bound[r], lowest_score(how.power, lambda));
    // Fewer than these kLanes keys may have a lower one.
    if (how.top_k == 0 || how.top_k >= kLanes) to.lambda[r] = lambda;
  } else if (how.top_k <= kGroups) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) hn::StoreU(tops[i], d, list + i * kLanes);
    if (!std::all_of(list, list + kGroups, [&](T x) { return x <= top; })) return;  // NaN
    T* const last = list + (how.top_k - 1);
    std::nth_element(list, last, list + kGroups, std::greater<>());
    to.bound[r] = std::max(to.bound[r], *last);
  }
}

template <bool kScales, class T>
HWY_INLINE void collect_scaled(const T* scores, int64_t stride, int64_t rows, int64_t cols,
                               T factor, int32_t first_key, const FirstBound* first_bound,
                               const Candidates<T>& to) {
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN(), kUnit = std::numeric_limits<T>::epsilon();
  // NaN, for a factor that divides no number, finds every column.
  const T inverse = factor > 0 && std::isfinite(1 / factor) ? 1 / factor : kNan;
  for (int64_t r = 0; r < rows; ++r, scores += stride) {
    if (first_bound != nullptr && to.bound[r] == std::numeric_limits<T>::lowest()) {
      set_first_bound<kScales>(scores, cols, factor, *first_bound, r, to);
    }
    T limit = to.bound[r];
    if (kScales) {
      limit *= inverse;
      if (std::isfinite(limit)) limit -= 4 * kUnit * std::abs(limit);  // whatever rounding does
    }
    append_row<kScales>(scores, cols, factor, limit, first_key, r, to);
  }
}

template <class T>
void collect(const T* scores, int64_t stride, int64_t rows, int64_t cols, T factor,
             int32_t first_key, const FirstBound* first_bound, const Candidates<T>& to) {
  if (factor == 1)
    return collect_scaled<false>(scores, stride, rows, cols, factor, first_key, first_bound, to);
  collect_scaled<true>(scores, stride, rows, cols, factor, first_key, first_bound, to);
}

KEYHOLE_SIMD_END
#endif  // toggle
