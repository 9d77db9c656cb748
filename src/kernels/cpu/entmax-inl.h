// src/kernels/cpu/entmax-inl.h
// Entmax and top_k in vectors: lambda of a list of scores, its weights and slopes, and sums over
// gathered rows of tensors as they are stored. collect-inl.h makes the lists.
#if defined(KEYHOLE_CPU_ENTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_ENTMAX_INL_H_
#undef KEYHOLE_CPU_ENTMAX_INL_H_
#else
#define KEYHOLE_CPU_ENTMAX_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/compress-inl.h"
#include "kernels/cpu/entmax_primitives.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/simd.h"

KEYHOLE_SIMD_BEGIN

#include "base/entmax-inl.h"  // an EntmaxRule for the instruction set at hand

// x = mantissa * 2^exponent for x > 0, with the mantissa between sqrt(1/2) and sqrt(2).
template <class T>
struct LogBits;
template <>
struct LogBits<float> {
  static constexpr uint32_t kOne = 0x3f800000, kRootHalf = 0x3f3504f3, kMantissa = 0x007fffff;
  static constexpr int kShift = 23, kBias = 127;
  static constexpr int kTerms = 6;  // of the series of log2_of_one_plus
};
template <>
struct LogBits<double> {
  static constexpr uint64_t kOne = 0x3ff0000000000000, kRootHalf = 0x3fe6a09e667f3bcd,
                            kMantissa = 0x000fffffffffffff;
  static constexpr int kShift = 52, kBias = 1023;
  static constexpr int kTerms = 12;
};
#if KEYHOLE_HAVE_HWY
template <class D>
HWY_INLINE void split_exponent(D d, hn::Vec<D> x, hn::Vec<D>& mantissa, hn::Vec<D>& exponent) {
  using B = LogBits<hn::TFromD<D>>;
  const hn::RebindToUnsigned<D> bits;
  const hn::RebindToSigned<D> whole;
  const auto shifted = hn::Add(hn::BitCast(bits, x), hn::Set(bits, B::kOne - B::kRootHalf));
  const auto power = hn::BitCast(whole, hn::ShiftRight<B::kShift>(shifted));
  exponent = hn::ConvertTo(d, hn::Sub(power, hn::Set(whole, B::kBias)));
  mantissa = hn::BitCast(
      d, hn::Add(hn::And(shifted, hn::Set(bits, B::kMantissa)), hn::Set(bits, B::kRootHalf)));
}
#else
template <class D>
HWY_INLINE void split_exponent(D d, hn::Vec<D> x, hn::Vec<D>& mantissa, hn::Vec<D>& exponent) {
  using T = hn::TFromD<D>;
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    int power = 0;
    T m = std::frexp(x.raw[i], &power);
    if (m < T(0.70710678118654752)) m *= 2, --power;
    mantissa.raw[i] = m;
    exponent.raw[i] = T(power);
  }
}
#endif

// log2(1 + x) for -1 < x <= 0: twice the series of atanh(t), with t = x / (2 + x) near 0, where no
// digit of x is lost, and with the mantissa m of 1 + x, t = (m - 1) / (m + 1), elsewhere. |t| <=
// 0.172.
template <class D>
HWY_INLINE hn::Vec<D> log2_of_one_plus(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  using B = LogBits<T>;
  const auto one = hn::Set(d, T(1)), two = hn::Set(d, T(2)), zero = hn::Zero(d);
  hn::Vec<D> mantissa, exponent;
  split_exponent(d, hn::Add(one, x), mantissa, exponent);
  const auto is_far = hn::Lt(x, hn::Set(d, T(-0.29)));
  const auto above = hn::IfThenElse(is_far, hn::Sub(mantissa, one), x);
  const auto t = hn::Div(above, hn::Add(two, above));
  const auto square = hn::Mul(t, t);
  auto sum = hn::Set(d, T(1.0 / (2 * B::kTerms - 1)));
  for (int i = B::kTerms - 2; i >= 0; --i) {
    sum = hn::MulAdd(sum, square, hn::Set(d, T(1.0 / (2 * i + 1))));
  }
  const auto fraction = hn::Mul(hn::Mul(sum, t), hn::Set(d, T(2 * kLog2E)));
  return hn::Add(hn::IfThenElse(is_far, exponent, zero), fraction);
}

// The functions of EntmaxMath (base/entmax.h) on vectors, for scores not above lambda.
template <class T>
struct EntmaxVectorMath {
  using Real = T;
  using Vector = hn::Vec<Tag<T>>;
  static HWY_INLINE Vector all(T x) { return hn::Set(Tag<T>(), x); }
  static HWY_INLINE Vector times(Vector a, T b) { return hn::Mul(a, all(b)); }
  static HWY_INLINE Vector product(Vector a, Vector b) { return hn::Mul(a, b); }
  static HWY_INLINE Vector one_plus(Vector x) { return hn::Add(all(T(1)), x); }
  static HWY_INLINE Vector at_least_0(Vector x) {
    return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(Tag<T>())), x);
  }
  static HWY_INLINE Vector one_if_positive(Vector x) {
    return hn::IfThenElseZero(hn::Lt(hn::Zero(Tag<T>()), x), all(T(1)));
  }
  static HWY_INLINE Vector quotient_or_0(Vector a, Vector b) {
    return hn::IfThenElseZero(hn::Lt(hn::Zero(Tag<T>()), b), hn::Div(a, b));
  }
  static HWY_INLINE Vector exp(Vector x) { return exp2_of(Tag<T>(), hn::Mul(x, all(T(kLog2E)))); }
  static HWY_INLINE Vector power_of_one_plus(Vector x, Vector power) {
    const Tag<T> d;
    const auto weight = exp2_of(d, hn::Mul(power, log2_of_one_plus(d, x)));
    return hn::IfThenElseZero(hn::Lt(all(T(-1)), x), weight);
  }
};

template <class T>
void cap(T* scores, int64_t stride, int64_t rows, int64_t cols, T factor, T softcap) {
  const Tag<T> d;
  const auto inner = hn::Set(d, factor), outer = hn::Set(d, softcap);
  for (int64_t r = 0; r < rows; ++r, scores += stride) {
    for (int64_t c = 0; c < cols; c += int64_t(hn::Lanes(d))) {
      const auto bent = tanh_of(d, hn::Mul(inner, hn::LoadU(d, scores + c)));
      hn::StoreU(hn::Mul(outer, bent), d, scores + c);
    }
  }
}

template <class T>
int64_t drop(T* scores, int32_t* keys, int64_t count, T bound) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto bounds = hn::Set(d, bound);
  std::fill_n(scores + count, lanes, -std::numeric_limits<T>::infinity());
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i += lanes) {
    const auto v = hn::LoadU(d, scores + i);
    // Written places are behind those that are read next.
    kept +=
        append<T>(hn::Not(hn::Lt(v, bounds)), v, ListedKeys{keys + i}, scores + kept, keys + kept);
  }
  return kept;
}

// Calls visit(place, terms) for each vector of a list.
template <class T, class Visit>
HWY_INLINE EntmaxSums<double> for_each_term(const EntmaxPower& power, const T* scores,
                                            int64_t count, const Lambda<T>& lambda, Visit visit) {
  const Tag<T> d;
  constexpr int64_t kVectorsPerPiece = 8;  // sums in T drift; sums of pieces are in fp64
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto rule = EntmaxRule<EntmaxVectorMath<T>>::of(power);
  const auto top = hn::Set(d, lambda.top), above = hn::Set(d, lambda.above);
  const auto zero = hn::Zero(d), one = hn::Set(d, T(1));
  EntmaxSums<double> total;
  for (int64_t piece = 0; piece < count; piece += kVectorsPerPiece * lanes) {
    const int64_t end = std::min(count, piece + kVectorsPerPiece * lanes);
    auto weights = zero, slopes = zero, positive = zero;
    for (int64_t i = piece; i < end; i += lanes) {
      const auto terms = rule.terms(hn::Sub(hn::Sub(hn::LoadU(d, scores + i), top), above));
      weights = hn::Add(weights, terms.weight);
      slopes = hn::Add(slopes, terms.slope);
      positive = hn::Add(positive, hn::IfThenElseZero(hn::Lt(zero, terms.slope), one));
      visit(i, terms);
    }
    total.weight += double(hn::GetLane(hn::SumOfLanes(d, weights)));
    total.slope += double(hn::GetLane(hn::SumOfLanes(d, slopes)));
    total.count += double(hn::GetLane(hn::SumOfLanes(d, positive)));
  }
  return total;
}

template <class T>
Lambda<T> solve(const EntmaxPower& power, T* scores, int64_t count, T at_least) {
  if (count == 0) return {};
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  std::fill_n(scores + count, lanes, scores[0]);  // for the maximum
  auto tops = hn::LoadU(d, scores), checks = hn::Zero(d);
  for (int64_t i = 0; i < count; i += lanes) {
    const auto v = hn::LoadU(d, scores + i);
    tops = hn::Max(tops, v);
    checks = hn::MulAdd(v, hn::Zero(d), checks);  // 0, or NaN for what is not finite
  }
  const T check = hn::GetLane(hn::SumOfLanes(d, checks));
  const T top = hn::GetLane(hn::MaxOfLanes(d, tops)) + check;
  std::fill_n(scores + count, lanes, -std::numeric_limits<T>::infinity());  // of no weight
  const T above =
      check == 0
          ? solve_lambda<T>(power, count, std::max(T(0), at_least - top),
                            [&](T at) {
                              const EntmaxSums<double> sums = for_each_term<T>(
                                  power, scores, count, {top, at}, [](int64_t, const auto&) {});
                              return EntmaxSums<T>{T(sums.weight), T(sums.slope), T(sums.count)};
                            })
          : T(0);
  return {top, above};
}

template <class T>
T raise(const EntmaxPower& power, T* scores, int64_t count, T at_least) {
  const Tag<T> d;
  std::fill_n(scores + count, hn::Lanes(d), -std::numeric_limits<T>::infinity());  // of no weight
  const EntmaxSums<double> sums =
      for_each_term<T>(power, scores, count, {at_least, T(0)}, [](int64_t, const auto&) {});
  return sums.weight <= 1 ? at_least : at_least + T(lambda_step_below(power, sums));
}

template <class T>
EntmaxSums<double> weigh(const EntmaxPower& power, T* scores, int64_t count,
                         const Lambda<T>& lambda, T* weights, T* slopes) {
  const Tag<T> d;
  std::fill_n(scores + count, hn::Lanes(d), -std::numeric_limits<T>::infinity());  // of no weight
  return for_each_term<T>(power, scores, count, lambda, [&](int64_t i, const auto& terms) {
    hn::StoreU(terms.weight, d, weights + i);
    hn::StoreU(terms.slope, d, slopes + i);
  });
}

// The columns behind the last whole vector of a stored row.
template <class Storage, class T>
HWY_INLINE T dot_of_rest(const T* row, const Storage* other, int64_t begin, int64_t cols) {
  T sum = 0;
  for (int64_t x = begin; x < cols; ++x) sum += row[x] * T(to_f32(other[x]));
  return sum;
}

// Four rows at a time: their loads and their sums overlap.
template <class Storage, class T>
void gather_dots(const T* row, const Storage* rows, int64_t stride, const int32_t* keys,
                 int64_t count, int64_t cols, T* out) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d)), whole = cols / lanes * lanes;
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const Storage* r[4];
    for (int j = 0; j < 4; ++j) r[j] = rows + keys[i + j] * stride;
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (int64_t x = 0; x < whole; x += lanes) {
      const auto v = hn::LoadU(d, row + x);
      s0 = hn::MulAdd(v, load_as(d, r[0] + x), s0);
      s1 = hn::MulAdd(v, load_as(d, r[1] + x), s1);
      s2 = hn::MulAdd(v, load_as(d, r[2] + x), s2);
      s3 = hn::MulAdd(v, load_as(d, r[3] + x), s3);
    }
    out[i] = hn::GetLane(hn::SumOfLanes(d, s0)) + dot_of_rest(row, r[0], whole, cols);
    out[i + 1] = hn::GetLane(hn::SumOfLanes(d, s1)) + dot_of_rest(row, r[1], whole, cols);
    out[i + 2] = hn::GetLane(hn::SumOfLanes(d, s2)) + dot_of_rest(row, r[2], whole, cols);
    out[i + 3] = hn::GetLane(hn::SumOfLanes(d, s3)) + dot_of_rest(row, r[3], whole, cols);
  }
  for (; i < count; ++i) {
    const Storage* other = rows + keys[i] * stride;
    auto sum = hn::Zero(d);
    for (int64_t x = 0; x < whole; x += lanes) {
      sum = hn::MulAdd(hn::LoadU(d, row + x), load_as(d, other + x), sum);
    }
    out[i] = hn::GetLane(hn::SumOfLanes(d, sum)) + dot_of_rest(row, other, whole, cols);
  }
}

inline constexpr int64_t kKeysPerPiece = 16;  // that are summed before their sum is added to others

template <int kAcross, class Storage, class T>
HWY_INLINE void gather_sum_stored(const T* weights, const Storage* rows, int64_t stride,
                                  const int32_t* keys, int64_t count, T* out) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  hn::Vec<Tag<T>> total[kAcross];
#pragma GCC unroll 4
  for (int j = 0; j < kAcross; ++j) total[j] = hn::Zero(d);
  for (int64_t piece = 0; piece < count; piece += kKeysPerPiece) {
    hn::Vec<Tag<T>> sum[kAcross];
#pragma GCC unroll 4
    for (int j = 0; j < kAcross; ++j) sum[j] = hn::Zero(d);
    for (int64_t i = piece; i < std::min(count, piece + kKeysPerPiece); ++i) {
      const Storage* from = rows + keys[i] * stride;
      const auto w = hn::Set(d, weights[i]);
#pragma GCC unroll 4
      for (int j = 0; j < kAcross; ++j)
        sum[j] = hn::MulAdd(w, load_as(d, from + j * lanes), sum[j]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kAcross; ++j) total[j] = hn::Add(total[j], sum[j]);
  }
#pragma GCC unroll 4
  for (int j = 0; j < kAcross; ++j) hn::StoreU(total[j], d, out + j * lanes);
}

template <class Storage, class T>
HWY_INLINE T gather_sum_column(const T* weights, const Storage* column, int64_t stride,
                               const int32_t* keys, int64_t count) {
  T total = 0;
  for (int64_t piece = 0; piece < count; piece += kKeysPerPiece) {
    T sum = 0;
    for (int64_t i = piece; i < std::min(count, piece + kKeysPerPiece); ++i) {
      sum += weights[i] * T(to_f32(column[keys[i] * stride]));
    }
    total += sum;
  }
  return total;
}

template <class Storage, class T>
void gather_sum(const T* weights, const Storage* rows, int64_t stride, const int32_t* keys,
                int64_t count, int64_t cols, T* out) {
  constexpr int64_t kMostKeys = kKeysPerPiece * kKeysPerPiece;
  if (count > kMostKeys) {  // pieces of pieces
    alignas(64) T some[kMaxHeadDim];
    std::fill_n(out, cols, T(0));
    for (int64_t i = 0; i < count; i += kMostKeys) {
      gather_sum(weights + i, rows, stride, keys + i, std::min(kMostKeys, count - i), cols, some);
      for (int64_t x = 0; x < cols; ++x) out[x] += some[x];
    }
    return;
  }
  const int64_t lanes = int64_t(hn::Lanes(Tag<T>()));
  int64_t x = 0;
  for (; x + 4 * lanes <= cols; x += 4 * lanes) {
    gather_sum_stored<4>(weights, rows + x, stride, keys, count, out + x);
  }
  for (; x + lanes <= cols; x += lanes) {
    gather_sum_stored<1>(weights, rows + x, stride, keys, count, out + x);
  }
  for (; x < cols; ++x) out[x] = gather_sum_column(weights, rows + x, stride, keys, count);
}

template <class T>
void scatter(const T* weights, const T* row, int64_t cols, const int32_t* keys, int64_t count,
             T* to, int64_t stride) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t i = 0; i < count; ++i) {
    T* const sum = to + keys[i] * stride;
    const auto w = hn::Set(d, weights[i]);
    for (int64_t x = 0; x < cols; x += lanes) {
      hn::StoreU(hn::MulAdd(w, hn::LoadU(d, row + x), hn::LoadU(d, sum + x)), d, sum + x);
    }
  }
}

KEYHOLE_SIMD_END
#endif  // toggle
