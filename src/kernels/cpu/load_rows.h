// src/kernels/cpu/load_rows.h
// Rows of a tensor of any dtype as numbers of the type that is computed with.
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/dtype.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"

namespace keyhole::cpu {

// Whether rows of this storage type are loaded by vectors.
template <class Storage, class T>
inline constexpr bool kLoadsByVectors =
    std::is_same_v<typename Traits<Storage>::Compute, T> && !std::is_same_v<Storage, E4m3>;

// All 256 numbers of e4m3.
inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = to_f32(E4m3{uint8_t(i)});
  return values;
}();
template <class T, class Storage>
T value_of(Storage x) {
  if constexpr (std::is_same_v<Storage, E4m3>) {
    return T(kE4m3Values[x.bits]);
  } else {
    return T(to_f32(x));
  }
}

// One head of a tensor [batch, heads, length, cols].
struct TensorHead {
  const TensorView* tensor;
  int64_t batch, head;

  int64_t cols() const { return tensor->shape[3]; }
  template <class Storage>
  Rows<const Storage> rows() const {
    return rows_of<const Storage>(*tensor, batch, head);
  }
};

// to[i] = row first + i; columns up to `stride` are 0.
template <class T>
void load_rows(const TensorHead& from, int64_t first, int64_t count, T* to, int64_t stride) {
  with_index_storage(from.tensor->dtype, [&](auto storage) {
    using Storage = decltype(storage);
    const auto rows = from.rows<Storage>();
    const int64_t cols = from.cols();
    if constexpr (kLoadsByVectors<Storage, T>) {
      primitives<Storage>().load_rows(rows[first], rows.stride, count, cols, stride, T(1), to,
                                      stride);
    } else {
      for (int64_t i = 0; i < count; ++i, to += stride) {
        const Storage* const row = rows[first + i];
        for (int64_t x = 0; x < cols; ++x) to[x] = value_of<T>(row[x]);
        std::fill(to + cols, to + stride, T(0));
      }
    }
  });
}

// Rows as columns of a panel: to[x][i] = column x of row i of `rows`; those behind `count` are 0.
template <class T>
void transpose_to_panel(const T* rows, int64_t stride, int64_t count, int64_t cols, T* to) {
  if (count < kPanel) std::fill_n(to, cols * kPanel, T(0));
  primitives<T>().load_columns(rows, stride, count, cols, T(1), to, kPanel);
}

}  // namespace keyhole::cpu
