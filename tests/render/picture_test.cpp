// tests/render/picture_test.cpp
// A picture tells what the pattern says: pair by pair where a cell is a pair, and never "all" or
// "none" of a cell that holds both. For every sample of the catalog.
#include "render/picture.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "keyhole/error.h"
#include "pattern/catalog.h"
#include "pattern/smallest_shape.h"
#include "render/html.h"
#include "render/svg.h"
#include "render/text.h"
#include "support/scale.h"

namespace keyhole {
namespace {

void check_picture(const Pattern& pattern, const Shape& shape, int64_t most_cells) {
  const HeadPattern truth = pattern.for_head(shape);
  const Picture picture = look(pattern, shape, 0, 0, most_cells);
  int64_t pairs = 0;
  for (int64_t row = 0; row < picture.rows; ++row) {
    for (int64_t col = 0; col < picture.cols; ++col) {
      int64_t seen = 0, area = 0;
      for (int64_t q = row * picture.cell; q < std::min((row + 1) * picture.cell, shape.q_len);
           ++q) {
        for (int64_t k = col * picture.cell; k < std::min((col + 1) * picture.cell, shape.k_len);
             ++k) {
          ++area, seen += truth.allows(q, k);
        }
      }
      pairs += seen;
      ASSERT_EQ(picture.at(row, col) == Picture::kAbsent, seen == 0)
          << pattern << " at " << row << ", " << col;
      ASSERT_EQ(picture.at(row, col) == Picture::kFull, seen == area)
          << pattern << " at " << row << ", " << col;
    }
  }
  EXPECT_EQ(picture.pairs, pairs) << pattern;
}

TEST(Picture, TellsWhatThePatternSays) {
  for (const std::string& text : sample_texts()) {
    const Pattern pattern = parse(text);
    for (const auto& [q_len, k_len] : {std::pair<int64_t, int64_t>{16, 16}, {7, 20}, {20, 7}}) {
      const Shape shape = smallest_shape(pattern, q_len, k_len);
      try {
        pattern.for_head(shape);
      } catch (const Error&) {
        continue;  // `at` brings lengths of its own
      }
      check_picture(pattern, shape, 64);
      check_picture(pattern, shape, 5);
    }
  }
}

// Beyond 2^26 pairs bands are classified, and pairs counted by halving: the same numbers.
TEST(Picture, LongOnesAreCountedExactly) {
  const Shape shape{.q_len = 20000, .k_len = 20000};
  test::Sample sample;
  for (const char* text :
       {"documents(7000, 13000) & causal", "causal", "causal & window(99)", "streaming(16, 64)"}) {
    if (!sample.takes_next()) continue;
    const Picture picture = look(parse(text), shape, 0, 0, 64);
    EXPECT_FALSE(picture.is_estimate) << text;
    EXPECT_EQ(picture.pairs, count_pairs(parse(text), 20000, 20000)) << text;
  }
  if (test::scaled(100) < 100) return;  // what follows takes a quarter of a minute with a sanitizer
  const Picture estimate = look(parse("dilated(7)"), {.q_len = 400000, .k_len = 400000}, 0, 0, 64);
  EXPECT_NEAR(double(estimate.pairs) / estimate.all_pairs(), 1 / 7.0, 1e-4);
}

TEST(Picture, TextHasOneRowAQuery) {
  const Picture picture = look(causal() & window(1, 0), {.q_len = 3, .k_len = 3}, 0, 0, kTextCells);
  EXPECT_EQ(picture_rows(picture), (std::vector<std::string>{"#..", "##.", ".##"}));
  EXPECT_EQ(headline(picture), "causal & window(1, 0)   3 x 3, 5 of 9 pairs (55.6%)");
}

// A second layer: '#' and '+' keep weight, '-' attends without.
TEST(Picture, WhatKeepsWeightIsDrawnOverThePattern) {
  const Shape shape{.q_len = 4, .k_len = 4};
  const KeptPairs kept{"entmax(1.5)", "normal q and k", {{0}, {1}, {0, 1, 2}, {2, 3}}};
  Picture picture = look(causal(), shape, 0, 0, kTextCells);
  add_kept(picture, kept);
  EXPECT_EQ(picture_rows(picture), (std::vector<std::string>{"#...", "-#..", "###.", "--##"}));
  EXPECT_EQ(headline(picture), "causal, entmax(1.5)   4 x 4, 7 of 10 pairs keep weight (70.0%)");
  const std::string text = picture_text(picture);
  EXPECT_NE(text.find("of normal q and k; # keeps weight, - attends without"), std::string::npos);
  // A cell is all where every pair that attends keeps weight, not every pair.
  picture = look(causal(), shape, 0, 0, 2);
  add_kept(picture, kept);
  EXPECT_EQ(picture_rows(picture), (std::vector<std::string>{"+.", "+#"}));
  const std::string svg = picture_svg(picture);
  EXPECT_NE(svg.find("class=\"k4\" x=\"1\" y=\"1\""), std::string::npos) << svg;
  const std::string plain = picture_svg(look(causal(), shape, 0, 0, 2));
  EXPECT_EQ(plain.find("k4"), std::string::npos);
}

// What a selection chose is drawn the same way, in words of its own.
TEST(Picture, WhatWasChosenIsDrawnOverWhatIsVisible) {
  const Shape shape{.q_len = 4, .k_len = 4};
  const KeptPairs chosen{"at most 2 keys", "c.npy", {{0}, {0, 1}, {0, 2}, {0, 3}}, KeptAs::chosen};
  Picture picture = look(causal(), shape, 0, 0, kTextCells);
  add_kept(picture, chosen);
  EXPECT_EQ(picture_rows(picture), (std::vector<std::string>{"#...", "##..", "#-#.", "#--#"}));
  EXPECT_EQ(headline(picture), "causal, at most 2 keys   4 x 4, 7 of 10 pairs are chosen (70.0%)");
  EXPECT_NE(picture_text(picture).find("of c.npy; # is chosen, - is visible"), std::string::npos);
  picture = look(causal(), shape, 0, 0, 2);
  add_kept(picture, chosen);
  EXPECT_NE(picture_text(picture).find("# all that are visible are chosen"), std::string::npos);
  EXPECT_NE(picture_svg(picture).find("7 of 10 pairs are chosen"), std::string::npos);
}

// Where the pairs of the pattern were sampled, those of the second layer are still counted.
TEST(Picture, CountsWhatWasChosenOfAnEstimate) {
  if (test::scaled(100) < 100) GTEST_SKIP() << "a million keys take too long with a sanitizer";
  constexpr int64_t kLength = 1 << 20;
  KeptPairs chosen{"at most 1 key", "c.npy", {}, KeptAs::chosen};
  for (int32_t query = 0; query < kLength; ++query) chosen.keys.push_back({query});
  Picture picture = look(dilated(7), {.q_len = kLength, .k_len = kLength}, 0, 0, kTextCells);
  ASSERT_TRUE(picture.is_estimate);
  add_kept(picture, chosen);
  EXPECT_NE(headline(picture).find(" 1048576 of about "), std::string::npos) << headline(picture);
}

// Cells of any size: never "all" where a pair that attends has no weight, never "none" where one
// has.
TEST(Picture, CellsOfWhatKeepsWeightAreRight) {
  for (const int64_t most_cells : {64, 20, 7, 2}) {
    const Shape shape{.q_len = 61, .k_len = 61};
    KeptPairs kept{"softmax(top=3)", "some numbers", std::vector<std::vector<int32_t>>(61)};
    for (int32_t query = 0; query < 61; ++query) {
      for (int32_t key = 0; key <= query; ++key) {
        if (key % 5 == query % 3 || query < 14) kept.keys[size_t(query)].push_back(key);
      }
    }
    Picture picture = look(causal(), shape, 0, 0, most_cells);
    add_kept(picture, kept);
    for (int64_t row = 0; row < picture.rows; ++row) {
      for (int64_t col = 0; col < picture.cols; ++col) {
        int64_t seen = 0, kept_here = 0;
        for (int64_t q = row * picture.cell; q < std::min<int64_t>((row + 1) * picture.cell, 61);
             ++q) {
          const auto& keys = kept.keys[size_t(q)];
          for (int64_t k = col * picture.cell; k < std::min((col + 1) * picture.cell, q + 1); ++k) {
            ++seen, kept_here += std::ranges::count(keys, int32_t(k));
          }
        }
        const uint8_t drawn = picture.kept_at(row, col);
        EXPECT_EQ(drawn == Picture::kAbsent, kept_here == 0) << row << ", " << col;
        const bool is_all = kept_here > 0 && kept_here == seen;
        EXPECT_TRUE(drawn != Picture::kFull || is_all) << row << ", " << col;
        EXPECT_TRUE(!is_all || picture.cell > 15 || drawn == Picture::kFull) << row << ", " << col;
      }
    }
  }
}

// Text of a stranger must not become markup.
TEST(Picture, PatternTextIsEscaped) {
  const Pattern odd = lambda([](Position, Position) { return true; }, "</script><b>\"&");
  const Picture picture = look(odd, {.q_len = 2, .k_len = 2}, 0, 0, kTextCells);
  for (const std::string& page : {picture_html(odd, picture, "a<b  c>d"), picture_svg(picture)}) {
    EXPECT_EQ(page.find("<b>"), std::string::npos);
  }
  const std::string page = picture_html(odd, picture, "");
  EXPECT_EQ(page.find("</script>"), page.rfind("</script>")) << "the script must end once";
}

}  // namespace
}  // namespace keyhole
