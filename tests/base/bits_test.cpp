// tests/base/bits_test.cpp
// Bitmaps: intervals of any length at any place, across word borders.
#include "base/bits.h"

#include <gtest/gtest.h>

namespace keyhole {
namespace {

TEST(Bits, SetBitsSetsTheIntervalAndNothingElse) {
  constexpr int32_t kColumns = 200;
  for (int64_t begin = 0; begin <= kColumns; ++begin) {
    for (int64_t end = begin; end <= kColumns; ++end) {
      BitRows bits(3, kColumns);
      set_bits(bits.row(1), begin, end);
      ASSERT_EQ(bits.count(), end - begin) << begin << " " << end;
      for (const int64_t c : {begin - 1, begin, end - 1, end}) {
        if (c < 0 || c >= kColumns) continue;
        ASSERT_EQ(get_bit(bits.row(1), c), begin <= c && c < end) << begin << " " << end;
      }
    }
  }
}

TEST(Bits, RowsAreWholeWords) {
  EXPECT_EQ(words_per_row(0), 0);
  EXPECT_EQ(words_per_row(1), 1);
  EXPECT_EQ(words_per_row(64), 1);
  EXPECT_EQ(words_per_row(65), 2);
  BitRows bits(2, 65);
  set_bits(bits.row(1), 64, 65);
  EXPECT_EQ(bits.data(), (std::vector<uint64_t>{0, 0, 0, 1}));
  bits.clear();
  EXPECT_EQ(bits.count(), 0);
}

}  // namespace
}  // namespace keyhole
