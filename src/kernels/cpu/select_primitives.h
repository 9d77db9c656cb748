// src/kernels/cpu/select_primitives.h
// The steps of a selection on rows of scores: one table of functions per type, compiled for the
// best instruction set of this machine, as in primitives.h.
#pragma once

#include <cstdint>

#include "kernels/cpu/config.h"

namespace keyhole::cpu {

// The k-th largest number of a list, and how many are larger.
template <class T>
struct Threshold {
  T value;
  int64_t num_above;
};

// Lists that are written have room for a whole vector behind their end.
template <class T>
struct SelectPrimitives {
  // scores[kPanel] = scales[x] * sum over h of w[h] * max(products[h][x], 0). NaN stays NaN.
  void (*relu_sum)(const T* products, int64_t heads, const T* w, const T* scales, T* scores);

  // The gradients of relu_sum for ds[kPanel], those of the sums: products become their gradients,
  // and dw[h] += its own; null: not wanted.
  void (*relu_gradient)(T* products, int64_t heads, const T* w, const T* ds, T* dw);
  // weights[kPanel] += sum over h of 2^(scores[h][x] - lse[h])
  void (*add_powers)(const T* scores, int64_t heads, const T* lse, T* weights);

  // The entries with a set bit whose score is above `low`, which NaN never is, in order. Gives
  // their number.
  int64_t (*collect_above)(const T* scores, int64_t entries, const uint64_t* bits, T low, T* kept,
                           int32_t* kept_entries);
  // 1 <= k <= count; no NaN. Uses the list up and writes behind its end.
  Threshold<T> (*kth_largest)(T* scores, int64_t count, int64_t k);
  // The entries of the k largest scores, in the order of the list; of equal scores the first.
  // `scores` has room for a whole vector too.
  void (*take_best)(T* scores, const int32_t* entries, int64_t count, int64_t k,
                    const Threshold<T>& threshold, int32_t* taken);
};

template <class T>
const SelectPrimitives<T>& select_primitives();

}  // namespace keyhole::cpu
