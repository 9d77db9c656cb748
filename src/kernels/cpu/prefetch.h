// src/kernels/cpu/prefetch.h
// Prefetches rows that will be needed soon, while products run. Narrow patterns touch every row
// only a few times, so they would wait for memory otherwise.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/int_math.h"
#include "kernels/cpu/config.h"

namespace keyhole::cpu {

// A stack of requests: the last one is fetched first, because it is needed soonest. All of it is a
// hint: what does not fit is dropped, and a few more lines may be fetched than were requested.
class Prefetch {
 public:
  // Requests `cols` elements of each of `rows` rows.
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

  // Fetches some of the requested cache lines. Inlined into the matrix product: a call would spill
  // its accumulators.
  template <int kLines>
  [[gnu::always_inline]] void fetch() {
    if (num_ == 0) return;
    Asked& asked = asked_[size_t(num_ - 1)];
    const char* line = asked.begin + asked.done * asked.step;
#pragma GCC unroll 16
    for (int i = 0; i < kLines; ++i, line += asked.step) {
      __builtin_prefetch(line, 0, 2);  // to read, into the L2 cache
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
