// src/kernels/cpu/entry_panel.h
// A panel of entries, before it is packed.
#pragma once

#include <algorithm>

#include "kernels/cpu/load_rows.h"

namespace keyhole::cpu {

// Up to kPanel entries: consecutive ones, or some of a list.
struct EntryPanel {
  int64_t column;  // where it begins among all that is listed; without a list, its first entry
  int64_t width;
  const int32_t* keys = nullptr;  // [width], or null
  // A bit for each entry that some query has. The others load as zeros: gradients are sums of
  // whole panels, and 0 x NaN is NaN.
  uint64_t needed = ~uint64_t{0};

  int64_t key(int64_t x) const { return keys != nullptr ? keys[x] : column + x; }
  template <class T>
  void load(const TensorHead& from, T* to, int64_t stride) const {
    if (keys != nullptr) {
      for (int64_t x = 0; x < width; ++x) load_rows(from, keys[x], 1, to + x * stride, stride);
    } else {
      load_rows(from, column, width, to, stride);
    }
    for (int64_t x = 0; ~needed != 0 && x < width; ++x) {
      if ((needed >> x & 1) == 0) std::fill_n(to + x * stride, stride, T(0));
    }
  }
};

}  // namespace keyhole::cpu
