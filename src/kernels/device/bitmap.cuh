// src/kernels/device/bitmap.cuh
// One bit of a tile's bitmap, whatever its layout: for cold paths. docs/gpu.md has the layouts.
#pragma once

#include <cstdint>

#include "kernels/contract.h"

namespace keyhole::device {

// 32-bit words of a lane for 16 rows, in the mma layout, and of a whole bitmap.
__host__ __device__ constexpr int32_t mma_lane_words(int32_t cols) { return (cols + 63) / 64; }
__host__ __device__ constexpr int64_t mma_words(int32_t rows, int32_t cols) {
  return int64_t{rows / 16} * 32 * mma_lane_words(cols);
}

// Where the bit of (row, col) lies in the mma layout of a tile of `cols` columns.
struct MmaBit {
  int32_t word, bit;
};
__host__ __device__ constexpr MmaBit mma_bit(int32_t row, int32_t col, int32_t cols) {
  const int32_t lane = row % 8 * 4 + col % 8 / 2;
  const int32_t word = (row / 16 * 32 + lane) * mma_lane_words(cols) + col / 64;
  const int32_t element = row % 16 / 8 * 2 + col % 2;
  return {word, col % 64 / 8 * 4 + element};
}

template <BitmapLayout kLayout>
__device__ bool attends(const uint64_t* bitmaps, int32_t bitmap, int32_t rows, int32_t cols,
                        int32_t row, int32_t col) {
  if (bitmap == kFull) return true;
  if constexpr (kLayout == BitmapLayout::row_major) {
    const int64_t words = (cols + 63) / 64;
    return bitmaps[(int64_t{bitmap} * rows + row) * words + col / 64] >> (col % 64) & 1;
  } else {
    const MmaBit place = mma_bit(row, col, cols);
    const uint32_t* words =
        reinterpret_cast<const uint32_t*>(bitmaps) + bitmap * mma_words(rows, cols);
    return words[place.word] >> place.bit & 1;
  }
}

}  // namespace keyhole::device
