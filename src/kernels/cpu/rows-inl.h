// src/kernels/cpu/rows-inl.h
// Loads and stores of rows: storage type to compute type and back, transposition, sums over
// gathered rows. Nothing is read or written past the given columns of a tensor's row.
#if defined(KEYHOLE_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_CPU_ROWS_INL_H_
#undef KEYHOLE_CPU_ROWS_INL_H_
#else
#define KEYHOLE_CPU_ROWS_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/primitives.h"
#include "kernels/cpu/simd.h"

KEYHOLE_SIMD_BEGIN

template <class Storage, class T>
void load_rows(const Storage* src, int64_t src_stride, int64_t rows, int64_t cols,
               int64_t padded_cols, T factor, T* dst, int64_t dst_stride) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto factors = hn::Set(d, factor);
  for (int64_t r = 0; r < rows; ++r, src += src_stride, dst += dst_stride) {
    int64_t x = 0;
    for (; x + lanes <= cols; x += lanes) {
      hn::StoreU(hn::Mul(load_as(d, src + x), factors), d, dst + x);
    }
    for (; x < cols; ++x) dst[x] = T(to_f32(src[x])) * factor;
    for (; x < padded_cols; ++x) dst[x] = 0;
  }
}

// x * 0 is 0 for a number and NaN for an infinity or a NaN.
template <class Storage, class T>
bool store_rows(const T* src, int64_t src_stride, int64_t rows, int64_t cols, const T* factors,
                Storage* dst, int64_t dst_stride) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  const auto zero = hn::Zero(d);
  auto checks = zero;
  T check = 0;
  for (int64_t r = 0; r < rows; ++r, src += src_stride, dst += dst_stride) {
    const T factor = factors != nullptr ? factors[r] : T(1);
    const auto all_factor = hn::Set(d, factor);
    auto checks_here = zero;  // one per row, so that rows do not depend on each other
    int64_t x = 0;
    for (; x + lanes <= cols; x += lanes) {
      const auto v = hn::LoadU(d, src + x);
      checks_here = hn::MulAdd(v, zero, checks_here);
      store_as(hn::Mul(v, all_factor), d, dst + x);
    }
    checks = hn::Add(checks, checks_here);
    for (; x < cols; ++x) {
      check += src[x] * 0;
      dst[x] = Traits<Storage>::from(src[x] * factor);
    }
  }
  return check + hn::GetLane(hn::SumOfLanes(d, checks)) == 0;
}

template <class T>
void sum_lanes(const T* rows, int64_t num_rows, T* sums) {
  const Tag<T> d;
  for (int64_t r = 0; r < num_rows; ++r) {
    sums[r] = hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, rows + r * kMaxLanes<T>)));
  }
}

// A few rows at a time, so that src is read in streams; dst is small enough to stay in the cache.
template <class Storage, class T>
void load_columns(const Storage* src, int64_t src_stride, int64_t rows, int64_t cols, T factor,
                  T* dst, int64_t dst_stride) {
  int64_t whole_rows = 0, whole_cols = 0;
  if constexpr (sizeof(T) == sizeof(float)) {
    whole_rows = rows / kSquare * kSquare;
    whole_cols = cols / kSquare * kSquare;
    for (int64_t r = 0; r < whole_rows; r += kSquare) {
      for (int64_t c = 0; c < whole_cols; c += kSquare) {
        load_columns_square(src + r * src_stride + c, src_stride, factor, dst + c * dst_stride + r,
                            dst_stride);
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = r < whole_rows ? whole_cols : 0; c < cols; ++c) {
      dst[c * dst_stride + r] = T(to_f32(src[r * src_stride + c])) * factor;
    }
  }
}

// dst[x] = {a[x], b[x]}
inline void zip_rows(const uint16_t* a, const uint16_t* b, int64_t cols, uint32_t* dst) {
  for (int64_t x = 0; x < cols; ++x) dst[x] = a[x] | uint32_t{b[x]} << 16;
}

// rows and word_cols: multiples of kSquare.
inline void load_word_columns(const uint16_t* src, int64_t src_stride, int64_t rows,
                              int64_t word_cols, uint32_t* dst, int64_t dst_stride) {
  for (int64_t r = 0; r < rows; r += kSquare) {
    for (int64_t c = 0; c < word_cols; c += kSquare) {
      load_word_columns_square(src + r * src_stride + 2 * c, src_stride, dst + c * dst_stride + r,
                               dst_stride);
    }
  }
}

template <class T>
void add_row(const T* src, int64_t cols, T* dst) {
  const Tag<T> d;
  for (int64_t x = 0; x < cols; x += int64_t(hn::Lanes(d))) {
    hn::StoreU(hn::Add(hn::LoadU(d, dst + x), hn::LoadU(d, src + x)), d, dst + x);
  }
}

template <class Storage, class T>
void row_dots(const Storage* a, int64_t a_stride, const Storage* b, int64_t b_stride, int64_t rows,
              int64_t cols, T* dots) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  for (int64_t r = 0; r < rows; ++r, a += a_stride, b += b_stride) {
    auto sum = hn::Zero(d);
    int64_t x = 0;
    for (; x + lanes <= cols; x += lanes) {
      sum = hn::MulAdd(load_as(d, a + x), load_as(d, b + x), sum);
    }
    dots[r] = hn::GetLane(hn::SumOfLanes(d, sum));
    for (; x < cols; ++x) dots[r] += T(to_f32(a[x])) * T(to_f32(b[x]));
  }
}

template <class T>
T dot(const T* a, const T* b, int64_t cols) {
  const Tag<T> d;
  auto sum = hn::Zero(d);
  for (int64_t x = 0; x < cols; x += int64_t(hn::Lanes(d))) {
    sum = hn::MulAdd(hn::LoadU(d, a + x), hn::LoadU(d, b + x), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Four rows at a time: their loads and their sums overlap.
template <class T>
void gather_dots(const T* row, const T* matrix, int64_t stride, const int32_t* index, int64_t count,
                 int64_t cols, T* out) {
  const Tag<T> d;
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const T *r0 = matrix + index[i] * stride, *r1 = matrix + index[i + 1] * stride;
    const T *r2 = matrix + index[i + 2] * stride, *r3 = matrix + index[i + 3] * stride;
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (int64_t x = 0; x < cols; x += int64_t(hn::Lanes(d))) {
      const auto v = hn::LoadU(d, row + x);
      s0 = hn::MulAdd(v, hn::LoadU(d, r0 + x), s0);
      s1 = hn::MulAdd(v, hn::LoadU(d, r1 + x), s1);
      s2 = hn::MulAdd(v, hn::LoadU(d, r2 + x), s2);
      s3 = hn::MulAdd(v, hn::LoadU(d, r3 + x), s3);
    }
    out[i] = hn::GetLane(hn::SumOfLanes(d, s0));
    out[i + 1] = hn::GetLane(hn::SumOfLanes(d, s1));
    out[i + 2] = hn::GetLane(hn::SumOfLanes(d, s2));
    out[i + 3] = hn::GetLane(hn::SumOfLanes(d, s3));
  }
  for (; i < count; ++i) out[i] = dot(row, matrix + index[i] * stride, cols);
}

// kAcross vectors of the row stay in registers during the loop over all gathered rows.
template <int kAcross, class T>
HWY_INLINE void gather_sum_columns(const T* weight, const T* matrix, int64_t stride,
                                   const int32_t* index, int64_t count, T* row) {
  const Tag<T> d;
  const int64_t lanes = int64_t(hn::Lanes(d));
  hn::Vec<Tag<T>> sum[kAcross];
#pragma GCC unroll 8
  for (int j = 0; j < kAcross; ++j) sum[j] = hn::LoadU(d, row + j * lanes);
  for (int64_t i = 0; i < count; ++i) {
    const T* from = matrix + index[i] * stride;
    const auto w = hn::Set(d, weight[i]);
#pragma GCC unroll 8
    for (int j = 0; j < kAcross; ++j) {
      sum[j] = hn::MulAdd(w, hn::LoadU(d, from + j * lanes), sum[j]);
    }
  }
#pragma GCC unroll 8
  for (int j = 0; j < kAcross; ++j) hn::StoreU(sum[j], d, row + j * lanes);
}

template <class T>
void gather_sum(const T* weight, const T* matrix, int64_t stride, const int32_t* index,
                int64_t count, int64_t cols, T* row) {
  const int64_t lanes = int64_t(hn::Lanes(Tag<T>()));
  int64_t x = 0;
  for (; x + 8 * lanes <= cols; x += 8 * lanes) {
    gather_sum_columns<8>(weight, matrix + x, stride, index, count, row + x);
  }
  for (; x < cols; x += lanes) {
    gather_sum_columns<1>(weight, matrix + x, stride, index, count, row + x);
  }
}

KEYHOLE_SIMD_END
#endif  // toggle
