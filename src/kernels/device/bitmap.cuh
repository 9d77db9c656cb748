// src/kernels/device/bitmap.cuh
// One bit of a tile's bitmap, whatever its layout: for cold paths. docs/gpu.md has the layouts.
#pragma once

#include <cstdint>

#include "base/bits.h"
#include "plan/view.h"

namespace keyhole::device {

using keyhole::mma_words;

// The inverse: the pair of a bit. Some layouts have bits past the last column.
struct RowAndCol {
  int32_t row, col;
};
template <BitmapLayout kLayout>
__host__ __device__ constexpr RowAndCol place_of_bit(int32_t word, int32_t bit, int32_t cols) {
  if constexpr (kLayout == BitmapLayout::row_major) {
    const int32_t words = (cols + 63) / 64 * 2;
    return {word / words, word % words * 32 + bit};
  } else {
    const int32_t words = mma_lane_words(cols), lane = word / words % 32;
    const int32_t row = word / words / 32 * 16 + lane / 4 + bit % 4 / 2 * 8;
    return {row, word % words * 64 + bit / 4 * 8 + lane % 4 * 2 + bit % 2};
  }
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
