// tests/cli/pixels_test.cpp
// The picture as pixels: letters, cells, a title and axes with positions.
#include "cli/pixels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "keyhole/error.h"

namespace keyhole::cli {
namespace {

std::string drawn(std::string_view text, int64_t width, int64_t height) {
  std::set<std::pair<int64_t, int64_t>> dots;
  set_text(text, [&](int64_t x, int64_t y) { dots.insert({x, y}); });
  std::string rows;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) rows += dots.contains({x, y}) ? '#' : '.';
    rows += '\n';
  }
  return rows;
}

TEST(Letters, StandBesideEachOther) {
  EXPECT_EQ(drawn("k 1", 18, 7),
            "#.............#...\n"
            "#............##...\n"
            "#..#..........#...\n"
            "#.#...........#...\n"
            "##............#...\n"
            "#.#...........#...\n"
            "#..#.........###..\n");
  EXPECT_EQ(drawn("\u03b1", 6, 2), "#####.\n#...#.\n") << "a letter that is not there is one box";
}

TEST(Letters, AreAllDifferentAndInsideTheirBox) {
  std::map<std::string, char> seen;
  for (char c = ' '; c <= '~'; ++c) {
    set_text({&c, 1}, [&](int64_t x, int64_t y) {
      EXPECT_TRUE(x >= 0 && x < kLetterWidth - 1 && y >= 0 && y < kLetterHeight + 2) << c;
    });
    const auto [other, is_new] = seen.try_emplace(drawn({&c, 1}, kLetterWidth, 9), c);
    EXPECT_TRUE(is_new) << c << " looks like " << other->second;
  }
}

constexpr Rgb kCell{33, 102, 196}, kTitle{28, 36, 48}, kLabel{96, 107, 122};

struct Image : Pixels {
  // Whether the letters of `text` stand with their left upper corner at some place.
  bool says(std::string_view text, Rgb colour, int64_t dot = 2) const {
    std::vector<std::pair<int64_t, int64_t>> dots;
    set_text(text, [&](int64_t x, int64_t y) { dots.push_back({x * dot, y * dot}); });
    const int64_t right = int64_t(text.size()) * kLetterWidth * dot, down = 9 * dot;
    for (int64_t y = 0; y + down < height; ++y) {
      for (int64_t x = 0; x + right <= width + dot; ++x) {
        bool is_here = true;
        for (const auto& [dx, dy] : dots) {
          if (!(is_here = x + dx < width && at(x + dx, y + dy) == colour)) break;
        }
        if (is_here) return true;
      }
    }
    return false;
  }
};

Image image_of(const Pattern& pattern, const Shape& shape) {
  return {picture_pixels(look(pattern, shape, 0, 0, kPngCells))};
}

TEST(Pixels, HasATitleAndPositionsAlongItsSides) {
  const Image image = image_of(causal() & window(2), {1, 1, 4, 12, {}});
  EXPECT_TRUE(image.says("causal & window(2)", kTitle));
  EXPECT_TRUE(image.says("4 x 12, 12 of 48 pairs (25.0%)", kLabel));
  EXPECT_TRUE(image.says("keys k ->", kLabel));
  for (const char* position : {"0", "7", "8", "11"}) EXPECT_TRUE(image.says(position, kLabel));
}

TEST(Pixels, TicksAreRoundPositionsWhereACellIsManyPairs) {
  const Image image = image_of(causal(), {1, 1, 100000, 100000, {}});
  EXPECT_TRUE(image.says("20000", kLabel));
  EXPECT_TRUE(image.says("80000", kLabel));
}

TEST(Pixels, CellsAreThoseOfThePicture) {
  const Shape shape{1, 1, 8, 8, {}};
  int64_t cells[2] = {};
  for (const bool is_dense : {false, true}) {
    const Image image = image_of(is_dense ? dense() : sinks(4), shape);
    for (int64_t y = 0; y < image.height; ++y) {
      for (int64_t x = 0; x < image.width; ++x) cells[is_dense] += image.at(x, y) == kCell;
    }
  }
  EXPECT_NEAR(double(cells[0]) / double(cells[1]), 0.5, 0.01);
}

TEST(Pixels, WhatKeepsWeightHasAColourOfItsOwn) {
  constexpr Rgb kKept{185, 79, 5};
  Picture picture = look(causal(), {1, 1, 4, 4, {}}, 0, 0, kPngCells);
  add_kept(picture, {"entmax(2)", "normal q and k", {{0}, {0}, {1, 2}, {3}}});
  const Image image = {picture_pixels(picture)};
  int64_t kept = 0, plain = 0;
  for (const Rgb& colour : image.colours) kept += colour == kKept, plain += colour == kCell;
  const Image all = image_of(dense(), {1, 1, 4, 4, {}});
  EXPECT_NEAR(double(kept) / double(std::ranges::count(all.colours, kCell)), 5 / 16.0, 0.01);
  EXPECT_EQ(plain, 0) << "what attends without weight is pale";
  EXPECT_TRUE(image.says("causal, entmax(2)", kTitle));
  const char* const caption = "4 x 4, 5 of 10 pairs keep weight (50.0%), of normal q and k";
  EXPECT_TRUE(image.says(caption, kLabel, 1) || image.says(caption, kLabel, 2));
}

TEST(Pixels, OddShapesAndLongTitles) {
  Pattern pattern = causal();
  for (int64_t i = 0; i < 100; ++i) pattern = pattern | window(i);
  EXPECT_TRUE(image_of(pattern, {1, 1, 3, 3, {}}).says("...", kTitle, 1));
  EXPECT_GT(image_of(causal(), {1, 1, 0, 5, {}}).width, 0);
  EXPECT_GT(image_of(causal(), {1, 1, 5, 0, {}}).width, 0);
  EXPECT_TRUE(image_of(causal(), {1, 1, 3, 3, -3}).says("-3", kLabel));
}
TEST(Png, IsAPngFileOrRefused) {
  const Picture picture = look(causal(), {1, 1, 3, 3, {}}, 0, 0, kPngCells);
  if (!can_write_png()) {
    EXPECT_THROW(picture_png(picture), Error);
    return;
  }
  const std::string file = picture_png(picture);
  EXPECT_EQ(file.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(file.substr(file.size() - 8, 4), "IEND");
}

}  // namespace
}  // namespace keyhole::cli
