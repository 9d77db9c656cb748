// tests/pattern/leaves_test.cpp
// What the laws cannot see: pictures of the structured leaves drawn by hand, sizes at which a
// careless leaf would overflow or crawl, texts of arrays, and the words of refusal.
#include <gtest/gtest.h>

#include "base/int_math.h"
#include "base/random.h"
#include "pattern/node.h"
#include "pattern/truth.h"

namespace keyhole::test {
namespace {

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
    return error.what();
  }
  return "no error";
}

struct Picture {
  Pattern pattern;
  int64_t q_len, k_len;
  std::string rows;
};

TEST(Leaves, LookAsTheirDefinitionsSay) {
  const std::vector<uint8_t> bytes = {1, 0, 0, 0, 255, 128, 0, 0, 0};
  const Picture pictures[] = {
      {documents({2, 0, 3}), 5, 5, "# # . . .\n# # . . .\n. . # # #\n. . # # #\n. . # # #\n"},
      {tree({-1, 0, 0, 1}), 4, 4, "# . . .\n# # . .\n# . # .\n# # . #\n"},
      {tree({-1, -1, 0, 1}), 4, 4, "# . . .\n. # . .\n# . # .\n. # . #\n"},
      {exponential(), 6, 6,
       "# # # . # .\n# # # # . #\n# # # # # .\n. # # # # #\n# . # # # #\n. # . # # #\n"},
      {fixed(3, 1), 7, 7,
       "# . . . . . .\n# # . . . . .\n# # # . . . .\n. . # # . . .\n. . # # # . .\n. . # # # # .\n"
       ". . # . . # #\n"},
      {fixed(3, 3), 4, 4, "# . . .\n# # . .\n# # # .\n# # # #\n"},
      {grid(2, 3, 1, 1), 6, 6,
       "# # . # # .\n# # # # # #\n. # # . # #\n# # . # # .\n# # # # # #\n. # # . # #\n"},
      {grid(2, 3, 0, 2), 6, 6,
       "# # # . . .\n# # # . . .\n# # # . . .\n. . . # # #\n. . . # # #\n. . . # # #\n"},
      {neighborhood(1, 6, 0, 1), 6, 6,
       "# # # . . .\n# # # . . .\n. # # # . .\n. . # # # .\n. . . # # #\n. . . # # #\n"},
      {neighborhood(2, 3, 5, 0), 6, 6,
       "# . . # . .\n. # . . # .\n. . # . . #\n# . . # . .\n. # . . # .\n. . # . . #\n"},
      {volume(2, 1, 3, 1, 0, 1), 6, 6,
       "# # . # # .\n# # # # # #\n. # # . # #\n# # . # # .\n# # # # # #\n. # # . # #\n"},
      {volume_neighborhood(3, 1, 2, 0, 4, 1), 6, 6,
       "# # . . . .\n# # . . . .\n. . # # . .\n. . # # . .\n. . . . # #\n. . . . # #\n"},
      {global_at({3, 1, 3}), 5, 5, ". # . # .\n# # # # #\n. # . # .\n# # # # #\n. # . # .\n"},
      {tiles(2, 2, {0, 1, 3}, {1, 1, 0}), 4, 4, ". . # #\n. . # #\n# # # #\n# # # #\n"},
      {bitmaps(2, 2, {0, 1, 3}, {0, 1, 0}, {0, 0, -1}, std::vector<uint8_t>{9, 0, 1, 1}), 4, 4,
       "# . . .\n# # . .\n# # # .\n# # # #\n"},
      {csr({0, 1, 1, 4}, {0, 2, 0, 2}), 3, 3, "# . .\n. . .\n# . #\n"},
      {mask(bytes, 3, 3), 3, 3, "# . .\n. # #\n. . .\n"},
      {random(2, 9, 1), 3, 3, "# # #\n# # #\n# # #\n"},  // more than there are: all of them
      {random(2, 0, 1), 2, 2, ". .\n. .\n"},
  };
  for (const Picture& picture : pictures) {
    EXPECT_EQ(keyhole::picture(picture.pattern, picture.q_len, picture.k_len), picture.rows)
        << picture.pattern;
  }
}

// Every query block sees exactly `count` distinct blocks, whatever the shape, and the same ones on
// every machine: the last lines were drawn by another program from the definition.
TEST(Leaves, RandomDrawsWhatItPromises) {
  for (const int64_t block : {1, 3, 16}) {
    for (const int64_t count : {1, 2, 5}) {
      const int64_t k_len = 16 * 5 + 7, num_blocks = ceil_div(k_len, block);
      const Shape shape{.q_len = k_len, .k_len = k_len};
      const HeadPattern head = random(block, count, 42).for_head(shape);
      for (int64_t query = 0; query < k_len; ++query) {
        int64_t seen = 0;
        for (int64_t b = 0; b < num_blocks; ++b) seen += head.allows(query, b * block);
        ASSERT_EQ(seen, std::min(count, num_blocks)) << "block " << block << ", query " << query;
        ASSERT_FALSE(head.allows(query, num_blocks * block));
      }
    }
  }
  EXPECT_EQ(picture(random(1, 2, 7), 5, 5), picture(random(1, 2, 7), 5, 5));
  EXPECT_NE(picture(random(1, 2, 7), 9, 9), picture(random(1, 2, 8), 9, 9));
  EXPECT_EQ(picture(random(2, 1, 7), 6, 6),
            "# # . . . .\n# # . . . .\n# # . . . .\n# # . . . .\n. . . . # #\n. . . . # #\n");
  EXPECT_EQ(picture(random(1, 2, -1), 5, 5),
            ". . # . #\n# . # . .\n. # . # .\n# . # . .\n. # # . .\n");
}

TEST(Leaves, RandomCannotBeAskedBeforeItsLengthIsKnown) {
  const Pattern pattern = random(2, 1, 3);
  EXPECT_FALSE(pattern.node()->is_resolved());
  try {
    pattern.node()->allows(0, 0);
    FAIL() << "answered";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::internal);
  }
}

// A chain is one step, however deep; a path of a million turns is not followed for every band.
TEST(Leaves, DeepTreesNeitherOverflowNorCrawl) {
  const int64_t tokens = 1'000'000;
  std::vector<int64_t> chain, zigzag;
  for (int64_t i = 0; i < tokens; ++i)
    chain.push_back(i - 1), zigzag.push_back(std::max<int64_t>(i - 2, -1));
  const NodePtr deep = tree(chain).node(), turns = tree(zigzag).node();
  EXPECT_TRUE(deep->allows(tokens - 1, 0) && !deep->allows(0, tokens - 1));
  EXPECT_TRUE(turns->allows(tokens - 1, 1) && !turns->allows(tokens - 1, 0));

  Strip strip;
  deep->strip({tokens - 128, tokens}, {0, tokens}, 128, strip);
  ASSERT_EQ(strip.size(), 2u);
  EXPECT_EQ(strip[0], (Segment{0, tokens - 127, Cover::all}));
  for (Position end = 128; end <= tokens; end += 1280) {
    strip.clear();
    turns->strip({end - 128, end}, {0, tokens}, 128, strip);
    ASSERT_EQ(strip.back().end, end);
  }

  const Rect far = {{tokens - 2, tokens}, {0, 70}};  // a path too long to walk, and yet exact
  const Truth truth(turns, far.q, far.k);
  EXPECT_EQ(wrong_strip(truth, {{tokens - 1, tokens}, far.k}, 1), "");
  EXPECT_EQ(wrong_drawing(truth, far), "");
}

// Bitmaps wider than a word, at every alignment, against the definition.
TEST(Leaves, MasksAreDrawnAtEveryAlignment) {
  Random random(3);
  std::vector<uint8_t> bytes(90 * 200);
  for (uint8_t& byte : bytes) byte = uint8_t(random.chance(80) ? random.below(256) : 0);
  const Truth truth(mask(bytes, 90, 200).node(), {-70, 160}, {-140, 340});
  for (Position begin = -140; begin < 210; ++begin) {
    for (const Position size : {1, 63, 64, 65, 130}) {
      const Rect rect = {{begin / 2, begin / 2 + 3}, {begin, begin + size}};
      ASSERT_EQ(wrong_drawing(truth, rect), "");
      ASSERT_EQ(wrong_strip(truth, rect, 1), "");
      ASSERT_EQ(wrong_strip(truth, {{begin / 2, begin / 2 + 1}, rect.k}, 1), "");
    }
  }
}

TEST(Leaves, LongArraysPrintSizeAndHash) {
  EXPECT_EQ(documents({3, 0, 5}).text(), "documents(3, 0, 5)");
  EXPECT_EQ(tree({-1, 0}).text(), "tree(-1, 0)");
  EXPECT_EQ(global_at({5, 1, 5}).text(), "global_at(5, 1, 5)");
  EXPECT_EQ(random(4, 2, -3).text(), "random(4, 2, -3)");
  EXPECT_EQ(lambda([](Position, Position) { return true; }, "mine").text(), "lambda(<mine>)");
  const std::vector<int64_t> ones(5000, 1);
  EXPECT_EQ(documents(std::vector<int64_t>(4096, 1)).text().substr(0, 18), "documents(1, 1, 1,");
  EXPECT_EQ(documents(ones).text(), "documents(<5000 lengths #cfec941154e217a5>)");
  EXPECT_EQ(csr({0, 1, 3}, {4, 2, 2}).text(), "csr(<2 rows, 2 pairs #0edf586b66a0fb40>)");
  EXPECT_EQ(tiles(64, 32, {0, 1, 3}, {4, 2, 3}).text(),
            "tiles(<64x32, 2 rows, 3 tiles #f86b9acd82066de2>)");
  const std::vector<uint8_t> bytes = {1, 0, 0, 0, 9, 1};
  EXPECT_EQ(mask(bytes, 2, 3).text(), "mask(<2x3, 3 pairs #fb2c7bdf380bb7e2>)");
  EXPECT_NE(mask(bytes, 3, 2).text(), mask(bytes, 2, 3).text());
}

struct Refusal {
  std::function<void()> body;
  const char* text;
};

TEST(Leaves, RefuseWhatTheyCannotMean) {
  const std::vector<uint8_t> bytes(5);
  const Refusal refusals[] = {
      {[] { documents({}); }, "documents: no lengths given; expected at least one"},
      {[] { documents({3, -1}); }, "documents: length 1 is -1; lengths must be 0 or more"},
      {[] { documents({INT64_MAX, 1}); },
       "documents: the lengths add up to more than 2305843009213693951"},
      {[] { tree({}); }, "tree: no parents given; expected one per token"},
      {[] { tree({-1, 1}); },
       "tree: the parent of token 1 is 1; expected an earlier token (0 to 0) or -1 for a root"},
      {[] { tree({-2}); },
       "tree: the parent of token 0 is -2; the first token is a root: expected -1"},
      {[] { random(0, 1, 1); }, "random: block is 0; expected 1 to 2305843009213693951"},
      {[] { random(1, -1, 1); },
       "random: count is -1; expected 0 or more key blocks for each query block"},
      {[] { grid(0, 4, 1, 1); }, "grid: height is 0; it must be 1 or more"},
      {[] { grid(4, 4, 1, -1); }, "grid: the radius along width is -1; it must be 0 or more"},
      {[] { neighborhood(4, 0, 1, 1); }, "neighborhood: width is 0; it must be 1 or more"},
      {[] { volume(4, 4, 4, 1, -1, 1); },
       "volume: the radius along height is -1; it must be 0 or more"},
      {[] { volume_neighborhood(int64_t{1} << 30, int64_t{1} << 30, 4, 1, 1, 1); },
       "volume_neighborhood: there are more than 2305843009213693951 positions; make width "
       "smaller"},
      {[] { grid(int64_t{1} << 40, int64_t{1} << 40, 1, 1); },
       "grid: there are more than 2305843009213693951 positions; make width smaller"},
      {[] { fixed(0, 1); }, "fixed: stride is 0; expected 1 to 2305843009213693951"},
      {[] { fixed(4, 5); }, "fixed: columns is 5; expected 1 to the stride, 4"},
      {[] { fixed(4, 0); }, "fixed: columns is 0; expected 1 to the stride, 4"},
      {[] { global_at({}); }, "global_at: no positions given; expected at least one"},
      {[] { tiles(0, 4, {0}, {}); }, "tiles: the tile is 0 x 4; both sides must be 1 or more"},
      {[] { bitmaps(2, 9999, {0}, {}, {}, {}); },
       "bitmaps: the tile is 2 x 9999; sides of 1 to 4096 are accepted"},
      {[] { bitmaps(2, 2, {0, 1}, {0}, {}, {}); },
       "bitmaps: got 1 keys and 0 numbers of bitmaps; each tile has one, -1 where it is full"},
      {[] { bitmaps(2, 2, {0, 2}, {0}, {-1}, {}); },
       "bitmaps: offsets end with 2 but there are 1 keys; the two must be equal"},
      {[] { bitmaps(2, 2, {0, 1}, {0}, {1}, std::vector<uint8_t>(4, 1)); },
       "bitmaps: tile 0 names bitmap 1; there are 1, and -1 is a full tile"},
      {[] { bitmaps(2, 2, {0, 1}, {0}, {0}, std::vector<uint8_t>(5, 1)); },
       "bitmaps: 5 pairs of bitmaps are not a whole number of 2 x 2 tiles"},
      {[] { bitmaps(2, 2, {0, 2}, {3, 3}, {-1, -1}, {}); },
       "bitmaps: row 0 lists key tile 3 twice"},
      {[] { tiles(4, 4, {}, {}); }, "tiles: offsets is empty; expected one number more than rows"},
      {[] { csr({1, 1}, {3}); }, "csr: offsets begin with 1; expected 0"},
      {[] { csr({0, 2, 1}, {3}); }, "csr: offsets fall from 2 to 1 at 2; they must not decrease"},
      {[] { csr({0, 2}, {3}); },
       "csr: offsets end with 2 but there are 1 keys; the two must be equal"},
      {[] { csr({0, 1}, {-3}); }, "csr: key 0 is -3; expected 0 to 2305843009213693951"},
      {[&] { mask(bytes, 2, 3); }, "mask: 2 x 3 pairs need 6 bytes but got 5"},
      {[&] { mask(bytes, -1, 3); }, "mask: the shape is -1 x 3; lengths must be 0 or more"},
      {[&] { mask(bytes, INT64_MAX, 3); },
       "mask: q_len x k_len: 9223372036854775807 x 3 does not fit 64 bits"},
      {[] { lambda(nullptr); },
       "lambda: no function given; expected one that takes the positions of a query and of a key "
       "and says whether they attend"},
  };
  for (const Refusal& refusal : refusals) EXPECT_EQ(error_of(refusal.body), refusal.text);
}

}  // namespace
}  // namespace keyhole::test
