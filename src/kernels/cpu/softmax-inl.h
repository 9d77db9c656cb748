// src/kernels/cpu/softmax-inl.h
// From products q . k to weights: scores by the weight rule, mask, online softmax; and the gradient
// of all three. Scores are in base 2.
#if defined(KEYHOLE_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_SOFTMAX_INL_H_
#undef KEYHOLE_CPU_SOFTMAX_INL_H_
#else
#define KEYHOLE_CPU_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/simd.h"

KEYHOLE_SIMD_BEGIN

#include "base/weight_rule-inl.h"  // a SoftmaxRule for the instruction set at hand

// The numbers of the rule, as vectors of T.
template <class T>
struct VectorMath {
  using Real = T;
  using Vector = hn::Vec<Tag<T>>;
  static constexpr double kLogE = Base2Math<T>::kLogE, kTanhScale = Base2Math<T>::kTanhScale;

  static HWY_INLINE Vector all(T x) { return hn::Set(Tag<T>(), x); }
  static HWY_INLINE Vector times(Vector a, T b) { return hn::Mul(a, all(b)); }
  static HWY_INLINE Vector minus(Vector a, Vector b) { return hn::Sub(a, b); }
  static HWY_INLINE Vector times_plus(Vector a, T b, Vector c) { return hn::MulAdd(a, all(b), c); }
  static HWY_INLINE Vector one_minus_square(Vector x) { return hn::NegMulAdd(x, x, all(T(1))); }
  static HWY_INLINE Vector power(Vector x) { return exp2_of(Tag<T>(), x); }
  static HWY_INLINE Vector tanh(Vector x) { return tanh_of(Tag<T>(), x); }
};
// For weights against a statistic that is at least every score: a maximum.
template <class T>
struct VectorMathBelowMax : VectorMath<T> {
  static HWY_INLINE hn::Vec<Tag<T>> power(hn::Vec<Tag<T>> x) {
    return exp2_of_negative(Tag<T>(), x);
  }
};

template <class T>
void score(T* products, int64_t stride, int64_t rows, int64_t cols, const WeightRule& weight_rule,
           bool is_folded) {
  const Tag<T> d;
  auto rule = SoftmaxRule<VectorMath<T>>::of(weight_rule);
  if (is_folded) rule = rule.folded();
  if (is_folded && !rule.is_bent()) return;  // products are scores already
  for (int64_t r = 0; r < rows; ++r, products += stride) {
    for (int64_t c = 0; c < cols; c += int64_t(hn::Lanes(d))) {
      hn::StoreU(rule.score(rule.bend(hn::LoadU(d, products + c))), d, products + c);
    }
  }
}

template <class T>
void mask(T* scores, int64_t stride, int64_t rows, int64_t cols, const uint64_t* bitmap,
          int64_t bitmap_words) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto never = hn::Set(d, -std::numeric_limits<T>::infinity());
  for (int64_t r = 0; r < rows; ++r, scores += stride, bitmap += bitmap_words) {
    for (int64_t c = 0; c < cols; c += lanes) {
      const auto attends = mask_from_bits(d, bitmap[c / 64] >> (c % 64));
      hn::StoreU(hn::IfThenElse(attends, hn::LoadU(d, scores + c), never), d, scores + c);
    }
  }
}

template <class D, class T>
HWY_INLINE T row_max(D d, const T* row, int64_t cols) {
  auto top = hn::LoadU(d, row);
  for (int64_t c = int64_t(hn::Lanes(d)); c < cols; c += int64_t(hn::Lanes(d))) {
    top = hn::Max(top, hn::LoadU(d, row + c));
  }
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

// Weights of a row against `base`, stored; adds them to `sum`.
template <class Rule, class V, class T>
HWY_INLINE V store_weights(const Rule& rule, V base, int64_t cols, V sum, T* row) {
  const Tag<T> d;
  const auto minus_base = hn::Sub(hn::Zero(d), base);
  for (int64_t c = 0; c < cols; c += int64_t(hn::Lanes(d))) {
    const auto p = rule.weight_of_bent(hn::LoadU(d, row + c), minus_base);
    hn::StoreU(p, d, row + c);
    sum = hn::Add(sum, p);
  }
  return sum;
}
// The same, rounded as they are stored. The sum is of the weights before rounding.
template <class Rule, class V, class T, class Storage>
HWY_INLINE V store_rounded_weights(const Rule& rule, V base, int64_t cols, V sum, const T* row,
                                   Storage* to) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto minus_base = hn::Sub(hn::Zero(d), base);
  for (int64_t c = 0; c < cols; c += 2 * lanes) {
    const auto p = rule.weight_of_bent(hn::LoadU(d, row + c), minus_base);
    const auto next = rule.weight_of_bent(hn::LoadU(d, row + c + lanes), minus_base);
    store_factors(p, next, d, to + c);
    sum = hn::Add(sum, hn::Add(p, next));
  }
  return sum;
}

// factor * product - max is rounded once, and max was rounded before: at the maximum itself it is
// not 0 but up to 1/4 here, and much more for larger ones. There products are rounded first.
template <class T>
inline constexpr T kLargestFused = T(0.5) / std::numeric_limits<T>::epsilon();

template <class T>
void scale_row(T factor, int64_t cols, T* row) {
  const Tag<T> d;
  for (int64_t c = 0; c < cols; c += int64_t(hn::Lanes(d))) {
    hn::StoreU(hn::Mul(hn::LoadU(d, row + c), hn::Set(d, factor)), d, row + c);
  }
}

template <class Storage>
void softmax(const SoftmaxStrip<Storage>& s) {
  using T = typename SoftmaxStrip<Storage>::T;
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  const Tag<T> d;
  auto rule = SoftmaxRule<VectorMathBelowMax<T>, Bend::none>::of(s.rule);
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t r = 0; r < s.rows; ++r) {
    T* row = s.scores + r * s.stride;
    T* sums = s.sum + r * kMaxLanes<T>;
    auto sum = hn::LoadU(d, sums);
    const T here = s.factor * row_max(d, row, s.cols);
    if (!(here <= s.max[r])) {  // also true for NaN, which then shows in the result
      if (s.max[r] != kNever) {
        T* out = s.out + r * s.out_stride;
        const auto shrink = rule.weight(hn::Set(d, s.max[r]), hn::Set(d, here));
        sum = hn::Mul(sum, shrink);
        for (int64_t c = 0; c < s.out_cols; c += lanes) {
          hn::StoreU(hn::Mul(hn::LoadU(d, out + c), shrink), d, out + c);
        }
      }
      s.max[r] = here;
    }
    // While nothing attends, every score is -inf; minus 0 it stays so.
    const T top = s.max[r] == kNever ? T(0) : s.max[r];
    const auto base = hn::Set(d, top);
    rule.factor = s.factor;
    if (s.factor != 1 && !(std::abs(top) <= kLargestFused<T>)) [[unlikely]] {
      scale_row(s.factor, s.cols, row);
      rule.factor = 1;
    }
    if constexpr (sizeof(Storage) < sizeof(T)) {
      if (s.weights != nullptr) {
        sum = store_rounded_weights(rule, base, s.cols, sum, row, s.weights + r * s.weights_stride);
        hn::StoreU(sum, d, sums);
        continue;
      }
    }
    hn::StoreU(store_weights(rule, base, s.cols, sum, row), d, sums);
  }
}

// p and ds of one vector of pairs, columns c ... of row r.
template <bool kMasked, class Rule, class V, class Storage>
HWY_INLINE void pair_gradients(const Rule& rule, const ScoreGradient<Storage>& g, int64_t r,
                               int64_t c, V lse, V delta, V& p, V& ds) {
  const Tag<typename ScoreGradient<Storage>::T> d;
  const auto bent = rule.bend(hn::LoadU(d, g.products + r * g.stride + c));
  p = rule.weight(rule.score(bent), lse);
  const auto dp = hn::Sub(hn::LoadU(d, g.dp + r * g.stride + c), delta);
  ds = hn::Mul(hn::Mul(rule.slope(p), rule.steepness(bent)), dp);
  if constexpr (kMasked) {
    const uint64_t bits = g.bitmap[r * g.bitmap_words + c / 64] >> (c % 64);
    const auto attends = mask_from_bits(d, bits);
    p = hn::IfThenElseZero(attends, p);
    ds = hn::IfThenElseZero(attends, ds);
  }
}

template <Bend kBend, bool kMasked, bool kAcross, class Storage>
void score_gradient_rows(const ScoreGradient<Storage>& g) {
  using T = typename ScoreGradient<Storage>::T;
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto rule = SoftmaxRule<VectorMath<T>, kBend>::of(g.rule);
  for (int64_t r = 0; r < g.rows; ++r) {
    auto lse = hn::Set(d, g.lse[r]), delta = hn::Set(d, g.delta[r]);
    for (int64_t c = 0; c < g.cols; c += lanes) {
      if constexpr (kAcross) {
        lse = hn::LoadU(d, g.lse + c);
        delta = hn::LoadU(d, g.delta + c);
      }
      hn::Vec<Tag<T>> p, ds;
      pair_gradients<kMasked>(rule, g, r, c, lse, delta, p, ds);
      hn::StoreU(p, d, g.products + r * g.stride + c);
      hn::StoreU(ds, d, g.dp + r * g.stride + c);
    }
  }
}

// The same, rounded: two rows of two vectors at a time, which is what words and rows are made of.
template <Bend kBend, bool kMasked, class Storage>
void rounded_score_gradient_rows(const ScoreGradient<Storage>& g) {
  using T = typename ScoreGradient<Storage>::T;
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto rule = SoftmaxRule<VectorMath<T>, kBend>::of(g.rule);
  for (int64_t r = 0; r < g.rows; r += 2) {
    const int64_t last = std::min(r + 1, g.rows - 1);
    const hn::Vec<Tag<T>> lse[2] = {hn::Set(d, g.lse[r]), hn::Set(d, g.lse[last])};
    const hn::Vec<Tag<T>> delta[2] = {hn::Set(d, g.delta[r]), hn::Set(d, g.delta[last])};
    for (int64_t c = 0; c < g.cols; c += 2 * lanes) {
      hn::Vec<Tag<T>> p[2][2], ds[2][2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 2
        for (int j = 0; j < 2; ++j) {
          pair_gradients<kMasked>(rule, g, i == 0 ? r : last, c + j * lanes, lse[i], delta[i],
                                  p[i][j], ds[i][j]);
        }
      }
      if (last == r) p[1][0] = p[1][1] = ds[1][0] = ds[1][1] = hn::Zero(d);
      const int64_t words = r / 2 * g.stride + c, row = r * g.stride + c;
#pragma GCC unroll 2
      for (int j = 0; j < 2; ++j) {
        zip_factors<Storage>(p[0][j], p[1][j], d, g.rounded.p_words + words + j * lanes);
        zip_factors<Storage>(ds[0][j], ds[1][j], d, g.rounded.ds_words + words + j * lanes);
        store_factors(ds[j][0], ds[j][1], d, g.rounded.ds + row + j * g.stride);
      }
    }
  }
}

template <Bend kBend, class Storage>
HWY_INLINE void score_gradient_bent(const ScoreGradient<Storage>& g) {
  if constexpr (sizeof(Storage) == sizeof(uint16_t)) {
    if (g.rounded.ds != nullptr) {
      return g.bitmap != nullptr ? rounded_score_gradient_rows<kBend, true>(g)
                                 : rounded_score_gradient_rows<kBend, false>(g);
    }
  }
  if (g.queries_across) return score_gradient_rows<kBend, false, true>(g);
  if (g.bitmap != nullptr) return score_gradient_rows<kBend, true, false>(g);
  score_gradient_rows<kBend, false, false>(g);
}
template <class Storage>
void score_gradient(const ScoreGradient<Storage>& g) {
  using T = typename ScoreGradient<Storage>::T;
  const bool is_bent = SoftmaxRule<VectorMath<T>>::of(g.rule).is_bent();
  is_bent ? score_gradient_bent<Bend::softcap>(g) : score_gradient_bent<Bend::none>(g);
}

KEYHOLE_SIMD_END
#endif  // toggle
