// src/kernels/cpu/finite_rows.h
// Rows for a product with gradients of which most are 0: 0 times NaN or infinity is NaN, so rows
// with such numbers are left out of the product and added one by one, where their gradient is not
// 0.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

template <class T>
class FiniteRows {
 public:
  // rows[count][cols] must stay as they are while this is used.
  void take(const T* rows, int64_t count, int64_t cols) {
    rows_ = finite_ = rows;
    cols_ = cols;
    others_.clear();
    for (int64_t i = 0; i < count; ++i) {
      if (!is_finite(rows + i * cols)) others_.push_back(i);
    }
    if (others_.empty()) return;
    T* const copy = copy_.reserve(count * cols);
    std::copy_n(rows, count * cols, copy);
    for (const int64_t i : others_) std::fill_n(copy + i * cols, cols, T(0));
    finite_ = copy;
  }

  // With zeros in place of the rows that are left out.
  const T* rows() const { return finite_; }

  // to += gradient * row, for the rows in [first, end) that are left out. visit(row, add) calls
  // add(gradient, to) for each sum that such a row belongs to.
  template <class Visit>
  void add_others(int64_t first, int64_t end, Visit visit) const {
    for (const int64_t i : others_) {
      if (i < first || i >= end) continue;
      visit(i, [&](T gradient, T* to) {
        if (gradient == 0) return;
        for (int64_t x = 0; x < cols_; ++x) to[x] += gradient * rows_[i * cols_ + x];
      });
    }
  }

 private:
  bool is_finite(const T* row) const {
    T sum = 0;  // NaN if there is NaN or infinity
    for (int64_t x = 0; x < cols_; ++x) sum += row[x] * T(0);
    return sum == 0;
  }

  const T* rows_ = nullptr;
  const T* finite_ = nullptr;
  int64_t cols_ = 0;
  std::vector<int64_t> others_;
  Scratch<T> copy_;
};

}  // namespace keyhole::cpu
