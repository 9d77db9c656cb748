// src/plan/permute_bitmaps.cpp
// Bitmaps are drawn as rows of 64-bit words. Each kernel names the layout in which it reads them;
// docs/gpu.md has the picture.
#include <bit>

#include "base/bits.h"
#include "base/check.h"
#include "base/int_math.h"
#include "plan/schedule.h"

namespace keyhole {
namespace {

// All bitmaps of a part, or those of its transposed tiles, in the mma layout.
std::vector<uint64_t> mma_bitmaps(const TileView& view, bool is_transposed) {
  const int32_t rows = is_transposed ? view.tile.k : view.tile.q;
  const int32_t cols = is_transposed ? view.tile.q : view.tile.k;
  KEYHOLE_ASSERT(rows % 16 == 0 && cols % 8 == 0, "tile ", to_string(view.tile),
                 " has no mma bitmaps");
  const int64_t words = mma_words(rows, cols), row_words = words_per_row(view.tile.k);
  std::vector<uint64_t> permuted(size_t(ceil_div(view.num_bitmaps * words, 2)), 0);
  for (int64_t b = 0; b < view.num_bitmaps; ++b) {
    const uint64_t* in = view.bitmaps + b * view.tile.q * row_words;
    for (int32_t q = 0; q < view.tile.q; ++q) {
      for (int64_t w = 0; w < row_words; ++w) {
        for (uint64_t left = in [q * row_words + w]; left != 0; left &= left - 1) {
          const int32_t k = int32_t(w * 64 + std::countr_zero(left));
          const MmaBit place = is_transposed ? mma_bit(k, q, cols) : mma_bit(q, k, cols);
          const int64_t word = b * words + place.word;  // in 32-bit words, the lower half first
          permuted[size_t(word / 2)] |= uint64_t{1} << (word % 2 * 32 + place.bit);
        }
      }
    }
  }
  return permuted;
}

}  // namespace

void permute_bitmaps(ScheduleDraft& draft) {
  const TileView& lists = draft.lists;
  ScheduledTiles& made = draft.made;
  if (draft.target.layout == BitmapLayout::row_major) {
    const int64_t words = lists.num_bitmaps * lists.tile.q * words_per_row(lists.tile.k);
    made.bitmaps.assign(lists.bitmaps, lists.bitmaps + words);
    return;
  }
  made.bitmaps = mma_bitmaps(lists, /*is_transposed=*/false);
  if (draft.target.with_transposed) made.t_bitmaps = mma_bitmaps(lists, /*is_transposed=*/true);
}

}  // namespace keyhole
