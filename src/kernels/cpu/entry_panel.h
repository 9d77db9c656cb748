// src/kernels/cpu/entry_panel.h
// A panel of entries, before it is packed.
#pragma once

#include "kernels/cpu/load_rows.h"

namespace keyhole::cpu {

// Rows of queries that are multiplied with a panel at a time: 24 KiB of fp32.
inline constexpr int64_t kRowsPerProduct = 96;

// Up to kPanel entries: consecutive ones, or some of a list.
struct EntryPanel {
  int64_t column;  // where it begins among all that is listed; without a list, its first entry
  int64_t width;
  const int32_t* keys = nullptr;  // [width], or null

  int64_t key(int64_t x) const { return keys != nullptr ? keys[x] : column + x; }
  template <class T>
  void load(const TensorHead& from, T* to, int64_t stride) const {
    if (keys != nullptr) {
      for (int64_t x = 0; x < width; ++x) load_rows(from, keys[x], 1, to + x * stride, stride);
    } else {
      load_rows(from, column, width, to, stride);
    }
  }
};

}  // namespace keyhole::cpu
