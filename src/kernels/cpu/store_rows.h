// src/kernels/cpu/store_rows.h
// Rows of numbers into a tensor of any dtype that has gradients.
#pragma once

#include "kernels/cpu/load_rows.h"

namespace keyhole::cpu {

// Rows first ... first + count of `to` = from[count][stride].
template <class T>
void store_rows(const T* from, int64_t stride, int64_t count, const TensorHead& to, int64_t first) {
  with_storage(to.tensor->dtype, [&](auto storage) {
    using Storage = decltype(storage);
    const auto rows = rows_of<Storage>(*to.tensor, to.batch, to.head);
    if constexpr (kLoadsByVectors<Storage, T>) {
      primitives<Storage>().store_rows(from, stride, count, to.cols(), nullptr, rows[first],
                                       rows.stride);
    } else {
      KEYHOLE_ASSERT(false, "gradients of ", to_string(to.tensor->dtype), " from another type");
    }
  });
}

}  // namespace keyhole::cpu
