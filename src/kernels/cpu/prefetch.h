// src/kernels/cpu/prefetch.h
// Rows that will be needed soon, brought near while products run. Narrow patterns touch every row a
// few times only: what they wait for is memory, unless something else is computed meanwhile.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/int_math.h"
#include "kernels/cpu/config.h"

namespace keyhole::cpu {

// Asked for last, fetched first: the closer to its use something is asked for, the sooner it is
// needed. All of it is a hint: what does not fit is forgotten, and a few lines more are fetched
// than were asked for.
class Prefetch {
 public:
  // `cols` elements of each of `rows` rows.
  template <class T>
  void add(const T* data, int64_t stride, int64_t rows, int64_t cols) {
    if (rows <= 0) return;
    if (num_ == kMost) std::copy(asked_.begin() + 1, asked_.begin() + num_--, asked_.begin());
    const char* begin = reinterpret_cast<const char*>(data);
    const int64_t lines = ceil_div(cols * int64_t(sizeof(T)), kLine);
    asked_[size_t(num_++)] = stride == cols
                                 ? Asked{begin, kLine, lines * rows, 1}
                                 : Asked{begin, stride * int64_t(sizeof(T)), rows, lines};
  }

  // Some cache lines of what was asked for. Inlined into the matrix product, whose sums a call
  // would throw out of the registers.
  template <int kLines>
  [[gnu::always_inline]] void fetch() {
    if (num_ == 0) return;
    Asked& asked = asked_[size_t(num_ - 1)];
    const char* line = asked.begin + asked.done * asked.step;
#pragma GCC unroll 16
    for (int i = 0; i < kLines; ++i, line += asked.step) {
      __builtin_prefetch(line, 0, 2);  // to read, into the second-level cache
    }
    asked.done += kLines;
    if (asked.done < asked.count) return;
    asked.done = 0;
    asked.begin += kLine;
    if (--asked.columns == 0) --num_;
  }

 private:
  static constexpr int64_t kLine = int64_t(kAlignment);
  static constexpr int kMost = 8;
  // Columns of lines: `count` lines from `begin` on, `step` bytes apart; then the next column.
  struct Asked {
    const char* begin;
    int64_t step, count, columns;
    int64_t done = 0;  // lines of the column
  };
  std::array<Asked, kMost> asked_;
  int num_ = 0;
};

}  // namespace keyhole::cpu
