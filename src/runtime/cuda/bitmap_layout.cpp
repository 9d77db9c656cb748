// src/runtime/cuda/bitmap_layout.cpp
#include "runtime/cuda/bitmap_layout.h"

#include <cuda_runtime_api.h>

#include "base/bits.h"
#include "base/check.h"
#include "kernels/device/bitmap.cuh"

namespace keyhole {

std::vector<uint32_t> mma_bitmaps(const TileView& view, bool is_transposed) {
  const int32_t rows = is_transposed ? view.tile.k : view.tile.q;
  const int32_t cols = is_transposed ? view.tile.q : view.tile.k;
  KEYHOLE_ASSERT(rows % 16 == 0 && cols % 8 == 0, "tile ", to_string(view.tile),
                 " has no mma bitmaps");
  const int64_t words = device::mma_words(rows, cols);
  const int64_t row_words = words_per_row(view.tile.k);
  std::vector<uint32_t> permuted(size_t(view.num_bitmaps * words), 0);
  for (int64_t b = 0; b < view.num_bitmaps; ++b) {
    uint32_t* out = permuted.data() + b * words;
    const uint64_t* in = view.bitmaps + b * view.tile.q * row_words;
    for (int32_t q = 0; q < view.tile.q; ++q) {
      for (int64_t w = 0; w < row_words; ++w) {
        for (uint64_t left = in [q * row_words + w]; left != 0; left &= left - 1) {
          const int32_t k = int32_t(w * 64 + std::countr_zero(left));
          const auto place =
              is_transposed ? device::mma_bit(k, q, cols) : device::mma_bit(q, k, cols);
          out[place.word] |= uint32_t{1} << place.bit;
        }
      }
    }
  }
  return permuted;
}

}  // namespace keyhole
