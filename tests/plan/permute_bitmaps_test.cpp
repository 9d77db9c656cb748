// tests/plan/permute_bitmaps_test.cpp
// The mma layout of bitmaps, on the host: every bit lies where kernels look for it, and where the
// picture in docs/gpu.md says.
#include <gtest/gtest.h>

#include "base/bits.h"
#include "base/random.h"
#include "plan/schedule.h"

namespace keyhole::test {
namespace {

struct Place {
  int32_t row, col;
};
// The way back, as docs/gpu.md has it: stripes of 16 rows, in each 32 lanes, in each a word for
// every 64 columns; bit 4 * j + e is element e of the j-th product.
Place place_of(int32_t word, int32_t bit, int32_t cols) {
  const int32_t words = (cols + 63) / 64, lane = word / words % 32, stripe = word / words / 32;
  const int32_t j = bit / 4, e = bit % 4;
  return {16 * stripe + lane / 4 + 8 * (e / 2),
          64 * (word % words) + 8 * j + 2 * (lane % 4) + e % 2};
}

std::vector<uint64_t> random_bitmaps(const TileShape& tile, int count, uint64_t seed) {
  Random random(seed);
  std::vector<uint64_t> bitmaps(size_t(count) * size_t(tile.q) * size_t(words_per_row(tile.k)));
  for (size_t i = 0; i < bitmaps.size(); ++i) {
    const int32_t col = int32_t(i) % words_per_row(tile.k) * 64;
    const uint64_t columns = tile.k - col < 64 ? (uint64_t{1} << (tile.k - col)) - 1 : ~uint64_t{0};
    bitmaps[i] = random.next() & random.next() & columns;
  }
  return bitmaps;
}

TEST(PermuteBitmaps, EveryBitIsWhereKernelsLook) {
  for (const TileShape tile :
       {TileShape{64, 64}, {128, 64}, {64, 128}, {128, 128}, {192, 64}, {192, 96}, {16, 48}}) {
    constexpr int kCount = 3;
    const auto bitmaps = random_bitmaps(tile, kCount, uint64_t(tile.q * 1000 + tile.k));
    TileView view{};
    view.tile = tile;
    view.bitmaps = bitmaps.data();
    view.num_bitmaps = kCount;
    const Target target{.layout = BitmapLayout::mma, .with_transposed = true};
    ScheduleDraft draft{view, {}, target, {}};
    permute_bitmaps(draft);
    verify_bitmaps(draft);
    for (const bool is_transposed : {false, true}) {
      const int32_t rows = is_transposed ? tile.k : tile.q, cols = is_transposed ? tile.q : tile.k;
      const auto& permuted = is_transposed ? draft.made.t_bitmaps : draft.made.bitmaps;
      ASSERT_EQ(int64_t(permuted.size()), (kCount * mma_words(rows, cols) + 1) / 2);
      // As a kernel reads them.
      const auto* words = reinterpret_cast<const uint32_t*>(permuted.data());
      for (int b = 0; b < kCount; ++b) {
        const uint64_t* straight = bitmaps.data() + b * tile.q * words_per_row(tile.k);
        for (int32_t row = 0; row < rows; ++row) {
          for (int32_t col = 0; col < cols; ++col) {
            const int32_t q = is_transposed ? col : row, k = is_transposed ? row : col;
            const bool want = get_bit(straight + q * words_per_row(tile.k), k);
            const auto [word, bit] = mma_bit(row, col, cols);
            ASSERT_EQ(words[b * mma_words(rows, cols) + word] >> bit & 1, uint32_t(want))
                << to_string(tile) << (is_transposed ? " transposed" : "") << ", bitmap " << b
                << ", row " << row << ", column " << col;
          }
        }
      }
    }
  }
}

TEST(PermuteBitmaps, RowsStayWhereAKernelReadsRows) {
  const auto bitmaps = random_bitmaps({24, 40}, 5, 7);
  TileView view{};
  view.tile = {24, 40};
  view.bitmaps = bitmaps.data();
  view.num_bitmaps = 5;
  const Target target{.with_transposed = true};
  ScheduleDraft draft{view, {}, target, {}};
  permute_bitmaps(draft);
  verify_bitmaps(draft);
  EXPECT_EQ(draft.made.bitmaps, bitmaps);
  EXPECT_TRUE(draft.made.t_bitmaps.empty());
}

TEST(PermuteBitmaps, TheLayoutIsThePictureInTheDocs) {
  for (const auto& [rows, cols] : {std::pair{64, 64}, {128, 64}, {64, 128}, {128, 128}}) {
    ASSERT_EQ(mma_words(rows, cols) * 32, int64_t{rows} * cols);
    for (int32_t word = 0; word < mma_words(rows, cols); ++word) {
      for (int32_t bit = 0; bit < 32; ++bit) {  // all words and bits: the map is one to one
        const Place place = place_of(word, bit, cols);
        const auto there = mma_bit(place.row, place.col, cols);
        ASSERT_EQ(there.word, word) << rows << "x" << cols << ", bit " << bit;
        ASSERT_EQ(there.bit, bit) << rows << "x" << cols << ", word " << word;
      }
    }
  }
}

}  // namespace
}  // namespace keyhole::test
