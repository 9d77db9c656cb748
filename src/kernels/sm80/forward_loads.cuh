// src/kernels/sm80/forward_loads.cuh
// How rows of q, k and v come to shared memory, and how they lie there.
#pragma once

#include <cstdint>

#include "kernels/sm80/config.h"
#include "kernels/sm80/ptx.cuh"

namespace keyhole::sm80 {

// Rows lie one behind the other; inside a row the chunks of 16 bytes are permuted, so that the same
// chunk of eight neighbouring rows, what a matrix load reads at once, lies in eight different
// places of 128 bytes:
//   rows of a multiple of 128 bytes   chunk ^ row % 8
//   rows of 192 bytes                 chunk ^ row / 2 % 4     (odd rows begin in the middle of 128)
template <class C>
struct Swizzle {
  static constexpr bool is_plain = C::head_dim % 64 == 0;
  static constexpr int mask = is_plain ? 7 : 3;

  static __host__ __device__ constexpr uint32_t offset(uint32_t row, uint32_t chunk) {
    const uint32_t turn = is_plain ? row % 8 : row / 2 % 4;
    return row * Shape<C>::row_bytes + (chunk ^ turn) * 16;
  }
  // From a place whose chunk was 0 or 1 to the one `chunks` (even) further, in the same row.
  static __host__ __device__ constexpr uint32_t further(uint32_t place, int chunks) {
    return (place ^ uint32_t((chunks & mask) * 16)) + uint32_t((chunks & ~mask) * 16);
  }
};

// Rows of one head and one residue class in global memory.
struct ClassRows {
  const char* first;  // row 0
  int64_t row_bytes;  // from one row of the class to the next
  int32_t cols;       // what lies beyond them is not copied
};

// Copies kRows rows to `smem`, where rows are swizzled from 0. Columns from rows.cols on are left
// alone; rows from first_row + rows_left on become zeros. All threads of the CTA call; each copies
// the same chunks of every rows_per_pass-th row.
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
