// src/kernels/cpu/softmax-inl.h
// What happens to scores: softcap, mask, online softmax; and the gradient of all three.
// Scores are in base 2: log2(e) has been multiplied into the keys.
#if defined(KEYHOLE_CPU_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_SOFTMAX_INL_H_
#undef KEYHOLE_CPU_SOFTMAX_INL_H_
#else
#define KEYHOLE_CPU_SOFTMAX_INL_H_
#endif

#include <limits>

#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/simd.h"

KEYHOLE_SIMD_BEGIN

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

template <class T>
void softcap(T* scores, int64_t stride, int64_t rows, int64_t cols, T cap) {
  const Tag<T> d;
  const auto caps = hn::Set(d, cap);
  for (int64_t r = 0; r < rows; ++r, scores += stride) {
    for (int64_t c = 0; c < cols; c += int64_t(hn::Lanes(d))) {
      hn::StoreU(hn::Mul(caps, tanh_of(d, hn::LoadU(d, scores + c))), d, scores + c);
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

template <class T>
void softmax(const Softmax<T>& s) {
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t r = 0; r < s.rows; ++r) {
    T* row = s.scores + r * s.stride;
    T* sums = s.sum + r * kMaxLanes<T>;
    auto sum = hn::LoadU(d, sums);
    const T here = row_max(d, row, s.cols);
    if (!(here <= s.max[r])) {  // a NaN goes this way too and is found in the result
      if (s.max[r] != kNever) {
        T* out = s.out + r * s.out_stride;
        const auto shrink = exp2_of_negative(d, hn::Set(d, s.max[r] - here));
        sum = hn::Mul(sum, shrink);
        for (int64_t c = 0; c < s.out_cols; c += lanes) {
          hn::StoreU(hn::Mul(hn::LoadU(d, out + c), shrink), d, out + c);
        }
      }
      s.max[r] = here;
    }
    // While nothing attends, every score is -inf, and stays so less 0.
    const auto base = hn::Set(d, s.max[r] == kNever ? T(0) : s.max[r]);
    for (int64_t c = 0; c < s.cols; c += lanes) {
      const auto p = exp2_of_negative(d, hn::Sub(hn::LoadU(d, row + c), base));
      hn::StoreU(p, d, row + c);
      sum = hn::Add(sum, p);
    }
    hn::StoreU(sum, d, sums);
  }
}

template <bool kCapped, bool kMasked, bool kAcross, class T>
void score_gradient_rows(const ScoreGradient<T>& g) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto scale = hn::Set(d, g.scale), cap = hn::Set(d, g.cap), one = hn::Set(d, T(1));
  const auto factor = hn::Set(d, g.factor);
  for (int64_t r = 0; r < g.rows; ++r) {
    T *scores = g.scores + r * g.stride, *dps = g.dp + r * g.stride;
    auto lse = hn::Set(d, g.lse[r]), delta = hn::Set(d, g.delta[r]);
    for (int64_t c = 0; c < g.cols; c += lanes) {
      if constexpr (kAcross) {
        lse = hn::LoadU(d, g.lse + c);
        delta = hn::LoadU(d, g.delta + c);
      }
      auto score = hn::Mul(factor, hn::LoadU(d, scores + c));
      auto slope = scale;
      if constexpr (kCapped) {
        const auto bent = tanh_of(d, score);
        score = hn::Mul(cap, bent);
        slope = hn::Mul(scale, hn::NegMulAdd(bent, bent, one));
      }
      auto p = exp2_of(d, hn::Sub(score, lse));
      auto ds = hn::Mul(hn::Mul(p, slope), hn::Sub(hn::LoadU(d, dps + c), delta));
      if constexpr (kMasked) {
        const uint64_t bits = g.bitmap[r * g.bitmap_words + c / 64] >> (c % 64);
        const auto attends = mask_from_bits(d, bits);
        p = hn::IfThenElseZero(attends, p);
        ds = hn::IfThenElseZero(attends, ds);
      }
      hn::StoreU(p, d, scores + c);
      hn::StoreU(ds, d, dps + c);
    }
  }
}

template <bool kCapped, class T>
HWY_INLINE void score_gradient_capped(const ScoreGradient<T>& g) {
  if (g.queries_across) return score_gradient_rows<kCapped, false, true>(g);
  if (g.bitmap != nullptr) return score_gradient_rows<kCapped, true, false>(g);
  score_gradient_rows<kCapped, false, false>(g);
}
template <class T>
void score_gradient(const ScoreGradient<T>& g) {
  g.cap != 0 ? score_gradient_capped<true>(g) : score_gradient_capped<false>(g);
}

KEYHOLE_SIMD_END
#endif  // toggle
