// src/kernels/sm90/write_rows.cuh
// From accumulators to rows in memory.
#pragma once

#include "kernels/device/ptx.cuh"

namespace keyhole::sm90 {

// Lane c of four holds columns 2 c and 2 c + 1 of four blocks of 8, packed. Returns all of block c.
__device__ __forceinline__ uint4 exchange_blocks(const uint32_t (&two)[4], int c) {
  const bool is_odd = c & 1, is_high = c & 2;
  const uint32_t x = __shfl_xor_sync(~0u, is_odd ? two[0] : two[1], 1);
  const uint32_t y = __shfl_xor_sync(~0u, is_odd ? two[2] : two[3], 1);
  const uint32_t a0 = is_odd ? x : two[0], a1 = is_odd ? two[1] : x;
  const uint32_t b0 = is_odd ? y : two[2], b1 = is_odd ? two[3] : y;
  const uint32_t from0 = __shfl_xor_sync(~0u, is_high ? a0 : b0, 2);
  const uint32_t from1 = __shfl_xor_sync(~0u, is_high ? a1 : b1, 2);
  return is_high ? uint4{from0, from1, b0, b1} : uint4{a0, a1, from0, from1};
}

// Writes a warp's 16 rows to memory, four lanes for 64 bytes of a row. `rows` and `columns` of them
// exist. Element (4 j + 2 h + e) of `sum` is in row lane / 4 + 8 h, column 8 j + 2 (lane % 4) + e.
// True when a value, as stored, is not finite.
template <class T, int kCount>
__device__ __forceinline__ bool write_rows(const float (&sum)[kCount], float scale, T* to,
                                           int64_t row_step, int rows, int columns, int lane) {
  const int c = lane % 4;
  bool found = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = lane / 4 + 8 * h;
#pragma unroll
    for (int j = 0; j < kCount / 4; j += 4) {
      uint32_t two[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (j + i) + 2 * h;
        two[i] = device::pack_two<T>(scale * sum[at], scale * sum[at + 1]);
      }
      const uint4 eight = exchange_blocks(two, c);
      const int column = 8 * (j + c);
      if (row >= rows || column >= columns) continue;
      device::store_vector(to + row * row_step + column, eight);
      found = found || device::has_nonfinite<T>(eight.x) || device::has_nonfinite<T>(eight.y) ||
              device::has_nonfinite<T>(eight.z) || device::has_nonfinite<T>(eight.w);
    }
  }
  return found;
}

}  // namespace keyhole::sm90
