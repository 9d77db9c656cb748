// tests/pattern/pattern_test.cpp
// Pattern as users hold it: positions of queries, pictures, counts, argument checks.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "keyhole/error.h"
#include "pattern/node.h"
#include "pattern/samples.h"
#include "pattern/smallest_shape.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

TEST(Picture, ShowsOneRowAQuery) {
  EXPECT_EQ(picture(causal() & (window(2) | sinks(1)), 6, 6),
            "# . . . . .\n"
            "# # . . . .\n"
            "# # # . . .\n"
            "# # # # . .\n"
            "# . # # # .\n"
            "# . . # # #\n");
  EXPECT_EQ(picture(causal(), 2, 4), "# # # .\n# # # #\n") << "the last query sees the last key";
  EXPECT_EQ(picture(causal(), 3, 1), ".\n.\n#\n") << "queries before the first key";
  EXPECT_EQ(picture(causal(), 0, 4), "");
  EXPECT_EQ(picture(causal(), 2, 0), "\n\n");
  EXPECT_EQ(picture(per_head({sinks(1), causal()}), 2, 2), "# .\n# .\n") << "head 0";
}

TEST(Pattern, QueriesStandAtTheirOffset) {
  const Shape usual{.q_len = 2, .k_len = 5}, given{.q_len = 2, .k_len = 5, .offset = 0};
  EXPECT_TRUE(causal().for_head(usual).allows(0, 3));
  EXPECT_FALSE(causal().for_head(usual).allows(0, 4));
  EXPECT_TRUE(causal().for_head(given).allows(0, 0));
  EXPECT_FALSE(causal().for_head(given).allows(0, 1));
}

TEST(Pattern, StreamsItsText) {
  std::ostringstream stream;
  stream << (causal() & window(kUnbounded, 3)) << " " << window(2) << " " << window(-1, 4);
  EXPECT_EQ(stream.str(), "causal & window(inf, 3) window(2) window(-1, 4)");
}

TEST(Pattern, ChecksTheShape) {
  EXPECT_NE(message_of([] {
              causal().for_head({.q_len = -1, .k_len = 2});
            }).find("shape: q_len is -1; accepted: 0 to "),
            std::string::npos);
  EXPECT_NE(message_of([] { causal().for_head({.q_len = 1, .k_len = INT64_MAX}); }), "no error");
  EXPECT_NE(message_of([] { causal().for_head({.q_len = 1, .k_len = 1, .offset = INT64_MIN}); }),
            "no error");
  EXPECT_EQ(message_of([] { causal().for_head({.heads = 2, .q_len = 1, .k_len = 1}, 0, 2); }),
            "shape: head 2 was asked for, but there are 2; they count from 0");
  EXPECT_EQ(message_of([] { causal().for_head({.batch = 0, .q_len = 1, .k_len = 1}); }),
            "shape: batch entry 0 was asked for, but there are 0; they count from 0");
}

TEST(Pattern, FactoriesRefuseWhatMakesNoSense) {
  EXPECT_EQ(message_of([] { blocks(0); }), "blocks: size is 0; it must be 1 or more");
  EXPECT_EQ(message_of([] { sinks(-1); }), "sinks: count is -1; it must be 0 or more");
  EXPECT_EQ(message_of([] { prefix(-3); }), "prefix: count is -3; it must be 0 or more");
  EXPECT_EQ(message_of([] { global(-3); }), "global: count is -3; it must be 0 or more");
  EXPECT_EQ(message_of([] { dilated(0); }), "dilated: stride is 0; it must be 1 or more");
  EXPECT_EQ(message_of([] { dilated(2, -1); }), "dilated: count is -1; it must be 0 or more");
  EXPECT_EQ(message_of([] { strided(0); }), "strided: stride is 0; it must be 1 or more");
  EXPECT_EQ(message_of([] { streaming(1, 0); }), "streaming: window is 0; it must be 1 or more");
  EXPECT_EQ(message_of([] { longformer(-2, 0); }),
            "longformer: window is -2; it must be 0 or more");
  EXPECT_EQ(
      message_of([] { bigbird(4, 2, 1, 1, 0); }),
      "bigbird: window is 2; it counts the block itself and equally many on both sides: use 1 "
      "or 3");
  EXPECT_EQ(message_of([] { window(3, -4); }),
            "window(3, -4) holds no key; inf leaves a side open, as in window(inf, 0)");
  const int64_t huge = INT64_MAX;
  for (const std::function<void()>& action : std::initializer_list<std::function<void()>>{
           [&] { blocks(huge); }, [&] { sinks(huge); }, [&] { window(huge); },
           [&] { dilated(kUnbounded, 2); }, [&] { bigbird(kUnbounded, 3, 0, 0, 0); }}) {
    EXPECT_NE(message_of(action), "no error");
  }
}

// The largest arguments and positions: no sum or product inside may wrap.
TEST(Pattern, LargestNumbersDoNotWrap) {
  const Position far = kMaxPosition;
  const Pattern patterns[] = {window(kUnbounded, kUnbounded),
                              window(-kUnbounded, kUnbounded),
                              window(kUnbounded, 0),
                              sinks(kUnbounded),
                              blocks(kUnbounded),
                              prefix(kUnbounded),
                              global(kUnbounded),
                              dilated(kUnbounded),
                              dilated(kUnbounded, 1),
                              strided(kUnbounded),
                              streaming(kUnbounded, kUnbounded)};
  for (const Pattern& pattern : patterns) {
    for (const Position q : {-far, Position{0}, far - 4}) {
      for (const Position k : {-far, Position{0}, far - 4}) {
        const Rect rect = {{q, q + 4}, {k, k + 4}};
        const Cover cover = pattern.node()->cover(rect);
        int64_t pairs = 0;
        for (Position i = q; i < q + 4; ++i) {
          for (Position j = k; j < k + 4; ++j) pairs += pattern.node()->allows(i, j) ? 1 : 0;
        }
        const Cover counted = pairs == 0 ? Cover::none : pairs == 16 ? Cover::all : Cover::some;
        EXPECT_TRUE(cover == Cover::some || cover == counted) << pattern << " " << q << " " << k;
        BitRows bits(4, 4);
        pattern.node()->draw(rect, bits);
        EXPECT_EQ(bits.count(), pairs) << pattern << " " << q << " " << k;
      }
    }
  }
}

TEST(CountPairs, CountsEverySample) {
  for (const Pattern& pattern : sample_patterns()) {
    for (const auto& [q_len, k_len] : {std::pair{9, 13}, {13, 9}, {16, 16}, {1, 70}, {40, 3}}) {
      std::string drawn;
      try {
        drawn = picture(pattern, q_len, k_len);
      } catch (const Error&) {
        continue;  // of another length by its own arrays
      }
      EXPECT_EQ(count_pairs(pattern, q_len, k_len), std::count(drawn.begin(), drawn.end(), '#'))
          << pattern << " " << q_len << " x " << k_len;
    }
  }
}

// Closed formulas at a length where visiting the pairs would take hours.
TEST(CountPairs, IsQuickAtAMillionTokens) {
  const int64_t n = 1048576, triangle = n * (n + 1) / 2;
  EXPECT_EQ(count_pairs(dense(), n, n), n * n);
  EXPECT_EQ(count_pairs(~dense(), n, n), 0);
  EXPECT_EQ(count_pairs(causal(), n, n), triangle);
  EXPECT_EQ(count_pairs(~causal(), n, n), n * n - triangle);
  EXPECT_EQ(count_pairs(causal() & window(4095), n, n), n * 4096 - 4096 * 4095 / 2);
  EXPECT_EQ(count_pairs(sinks(16), n, n), n * 16);
  EXPECT_EQ(count_pairs(global(3), n, n), 2 * 3 * n - 9);
  EXPECT_EQ(count_pairs(blocks(64), n, n), n * 64);
  EXPECT_EQ(count_pairs(dilated(8), n, n), n * n / 8);
  EXPECT_EQ(count_pairs(causal() & dilated(8), n, n), 8 * (n / 8) * (n / 8 + 1) / 2);
  // streaming(16, 64): a window of 64, and 16 sinks for the queries that the window has left
  // behind.
  EXPECT_EQ(count_pairs(streaming(16, 64), n, n),
            n * 64 - 64 * 63 / 2 + (n - 79) * 16 + 15 * 16 / 2);
  // A function is asked pair by pair, but only where it could matter.
  const Pattern even = lambda([](Position q, Position k) { return (q + k) % 2 == 0; });
  EXPECT_EQ(count_pairs(causal() & window(1) & even, n / 64, n / 64), n / 64);
}

}  // namespace
}  // namespace keyhole::test
