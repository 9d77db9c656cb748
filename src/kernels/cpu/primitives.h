// src/kernels/cpu/primitives.h
// The steps of attention on packed matrices: one table of functions per storage type, compiled for
// the best instruction set of this machine. The layers above (which tile, which head, which thread)
// are plain C++ and compiled once. Storage is the type of the tensors, T the type of the arithmetic
// (Traits<Storage>::Compute).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/weight_rule.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/prefetch.h"

namespace keyhole::cpu {

// c[rows][cols] (+)= a[rows][depth] * b[depth][cols].
// cols is a multiple of the lanes and at most kPanel; rows and depth are any. b and c are
// row-major. a is row-major in panels: element (r, x) is a[r * a_stride + x / kPanel * a_panel + x
// % kPanel]; a plain row-major matrix has a_panel = kPanel. With a_transposed it is a[x * a_stride
// + r].
template <class T>
struct Gemm {
  int64_t rows, cols, depth;
  const T* a;
  int64_t a_stride, a_panel = kPanel;
  const T* b;
  int64_t b_stride, b_panel = 0;  // see above; 0: rows are contiguous
  T* c;
  int64_t c_stride;
  bool accumulate = false;
  bool a_transposed = false;
  Prefetch* meanwhile;  // what to prefetch while multiplying; not null
};

// Turns the scores of a strip into weights against the running maximum of their row.
template <class Storage>
struct SoftmaxStrip {
  using T = typename Traits<Storage>::Compute;
  WeightRule rule;
  int64_t rows, cols;  // cols: a multiple of the lanes
  T* scores;           // [rows][stride]  base 2, once multiplied by the factor; become weights
  int64_t stride;
  T* max;  // [rows]  running
  T* sum;  // [rows][kMaxLanes]  running, one sum per lane
  T* out;  // [rows][out_stride]  rescaled when the maximum rises
  int64_t out_stride, out_cols;
  T factor = 1;  // positive
  // [rows][weights_stride]  null: weights take the place of the scores. Otherwise they are rounded
  // and go here; cols is then a multiple of twice the lanes.
  Storage* weights = nullptr;
  int64_t weights_stride = 0;
};

// By the weight rule, p = weight and ds = slope * steepness * (dp - delta), for pairs that attend
// by the bitmap.
template <class Storage>
struct ScoreGradient {
  using T = typename Traits<Storage>::Compute;
  WeightRule rule;
  int64_t rows, cols;
  T* products;  // [rows][stride]  q . k; becomes p
  T* dp;        // [rows][stride]  becomes ds
  int64_t stride;
  const T* lse;            // [rows]  base 2; +inf for a row that attends to nothing
  const T* delta;          // [rows]
  const uint64_t* bitmap;  // null: all pairs attend
  int64_t bitmap_words;
  bool queries_across = false;  // queries are columns, not rows: lse and delta are [cols]

  // If given, p and ds are rounded and go here instead: ds as rows, both as words of two rows
  // (amx.h). cols is then a multiple of twice the lanes; a last row without a second is beside
  // zeros.
  struct Rounded {
    Storage* ds;                   // [rows][stride]
    uint32_t *p_words, *ds_words;  // [ceil(rows / 2)][stride]
  };
  Rounded rounded = {};
};

template <class Storage>
struct Primitives {
  using T = typename Traits<Storage>::Compute;

  const char* target;  // "AVX3", ...
  int64_t lanes;       // of T

  void (*gemm)(const Gemm<T>& gemm);

  // dst[rows][dst_stride] = factor * src; columns from cols to padded_cols are 0.
  void (*load_rows)(const Storage* src, int64_t src_stride, int64_t rows, int64_t cols,
                    int64_t padded_cols, T factor, T* dst, int64_t dst_stride);
  // dst[r] = factors[r] * src[r], or src[r] if factors is null. Returns whether all of src was
  // finite.
  bool (*store_rows)(const T* src, int64_t src_stride, int64_t rows, int64_t cols, const T* factors,
                     Storage* dst, int64_t dst_stride);
  // dst[cols][dst_stride] = factor * src[rows][src_stride], transposed.
  void (*load_columns)(const Storage* src, int64_t src_stride, int64_t rows, int64_t cols, T factor,
                       T* dst, int64_t dst_stride);
  // Two 16-bit numbers in a word, the first one low: dst[x] = {a[x], b[x]}; and, for words that lie
  // side by side in src, dst[c][r] = {src[r][2 c], src[r][2 c + 1]}. Strides in elements.
  void (*zip_rows)(const uint16_t* a, const uint16_t* b, int64_t cols, uint32_t* dst);
  void (*load_word_columns)(const uint16_t* src, int64_t src_stride, int64_t rows,
                            int64_t word_cols, uint32_t* dst, int64_t dst_stride);
  // dots[r] = a[r] . b[r]
  void (*row_dots)(const Storage* a, int64_t a_stride, const Storage* b, int64_t b_stride,
                   int64_t rows, int64_t cols, T* dots);
  // dst += src; cols is a multiple of the lanes.
  void (*add_row)(const T* src, int64_t cols, T* dst);

  // sums[r] = the sum of rows[r][kMaxLanes]; only `lanes` of them are used.
  void (*sum_lanes)(const T* rows, int64_t num_rows, T* sums);

  // Pairs that do not attend become -inf, whatever they hold.
  void (*mask)(T* scores, int64_t stride, int64_t rows, int64_t cols, const uint64_t* bitmap,
               int64_t bitmap_words);
  // Turns products of rows into scores in base 2. is_folded: the rule's factor was applied before.
  void (*score)(T* products, int64_t stride, int64_t rows, int64_t cols, const WeightRule& rule,
                bool is_folded);
  void (*softmax)(const SoftmaxStrip<Storage>& strip);
  void (*score_gradient)(const ScoreGradient<Storage>& gradient);

  // out[i] = row . matrix[index[i]] and row += sum of weight[i] * matrix[index[i]].
  void (*gather_dots)(const T* row, const T* matrix, int64_t stride, const int32_t* index,
                      int64_t count, int64_t cols, T* out);
  void (*gather_sum)(const T* weight, const T* matrix, int64_t stride, const int32_t* index,
                     int64_t count, int64_t cols, T* row);
};

template <class Storage>
const Primitives<Storage>& primitives();

}  // namespace keyhole::cpu
