// src/kernels/sm80/forward_loads.cuh
// Copies of rows of q, k and v to shared memory; row_swizzle.cuh has the layout.
#pragma once

#include <cstdint>

#include "kernels/mma/ptx.cuh"
#include "kernels/mma/row_swizzle.cuh"
#include "kernels/sm80/config.h"

namespace keyhole::sm80 {

using namespace mma;  // NOLINT: instructions, in the words of this backend

template <class C>
using Swizzle = RowSwizzle<C::head_dim>;

// Rows of one head and one residue class in global memory.
struct ClassRows {
  const char* first;  // row 0
  int64_t row_bytes;  // from one row of the class to the next
  int32_t cols;       // columns beyond these are not copied
};

// Copies kRows rows to `smem`, where the swizzle counts rows from 0. Columns from rows.cols on are
// not touched; rows from first_row + rows_left on become zeros. All threads of the CTA call. Each
// copies the same chunks of every rows_per_pass-th row.
template <class C, int kRows>
__device__ __forceinline__ void copy_rows(uint32_t smem, const ClassRows& rows, int64_t first_row,
                                          int32_t rows_left) {
  constexpr int chunks = C::head_dim / 8, power_of_two = chunks & -chunks;
  constexpr int lanes = power_of_two < 16 ? power_of_two : 16;  // side by side in a row
  constexpr int rows_per_pass = Shape<C>::threads / lanes;
  constexpr int pass_bytes = rows_per_pass * Shape<C>::row_bytes;
  static_assert(rows_per_pass % 8 == 0, "the swizzle of a thread's rows is one and the same");
  static_assert(kRows % rows_per_pass == 0);

  const uint32_t my_row = thread_index() / lanes, my_chunk = thread_index() % lanes;
  const uint32_t to = smem + Swizzle<C>::offset(my_row, my_chunk);
  const char* from = rows.first + (first_row + my_row) * rows.row_bytes + my_chunk * 16;
  if (rows_left >= kRows) {
#pragma unroll
    for (int pass = 0; pass < kRows / rows_per_pass; ++pass) {
#pragma unroll
      for (int chunk = 0; chunk < chunks; chunk += lanes) {
        if (int(my_chunk + chunk) * 8 < rows.cols) {
          copy_async(to + pass * pass_bytes + chunk * 16, from + chunk * 16);
        }
      }
      from += rows_per_pass * rows.row_bytes;
    }
    return;
  }
#pragma unroll 1
  for (int pass = 0; pass < kRows / rows_per_pass; ++pass) {
    const bool is_inside = int(my_row) + pass * rows_per_pass < rows_left;
    for (int chunk = 0; chunk < chunks; chunk += lanes) {
      if (int(my_chunk + chunk) * 8 < rows.cols) {
        copy_async_or_zeros(to + pass * pass_bytes + chunk * 16,
                            is_inside ? from + chunk * 16 : rows.first, is_inside);
      }
    }
    from += rows_per_pass * rows.row_bytes;
  }
}

}  // namespace keyhole::sm80
