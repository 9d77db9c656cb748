// tests/plan/compile_test.cpp
// Plans by example: the numbers a person can count on paper, and the cost they must not exceed.
#include "plan/compile.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "plan/estimate.h"
#include "plan/plan_state.h"
#include "support/message_of.h"
#include "support/scale.h"

namespace keyhole {
namespace {

PlanReport explain(const std::string& text, int64_t length, TileShape tile) {
  return plan(parse(text), length, length).explain(tile);
}

TEST(CompilePlan, CountsTilesOfTheStyleExample) {
  const PlanReport report = explain("causal & window(256)", 1024, {128, 128});
  ASSERT_EQ(report.parts.size(), 1u);
  EXPECT_EQ(report.pairs, 230272);
  EXPECT_EQ(report.parts[0].tiles, 21);
  EXPECT_EQ(report.parts[0].full_tiles, 7);
  EXPECT_EQ(report.parts[0].partial_tiles, 14);
  EXPECT_EQ(report.parts[0].bitmaps, 2);
  EXPECT_EQ(report.parts[0].bitmap_bytes, 2 * 128 * 128 / 8);
  EXPECT_NEAR(report.waste, 0.331, 0.001);
}

TEST(CompilePlan, LengthsThatListsCannotNumberAreRefusedAtOnce) {
  const auto message = [](int64_t q_len, int64_t k_len) {
    return test::message_of([&] { plan(causal(), q_len, k_len); });
  };
  const int64_t most = INT32_MAX;
  EXPECT_EQ(message(1, most), "no error");
  EXPECT_EQ(message(most, most), "no error");
  EXPECT_EQ(message(1, most + 1),
            "plan: q_len is 1 and k_len is 2147483648; accepted are 0 to 2147483647; plan longer "
            "sequences in pieces: some of the queries at a time (set their offset), and some "
            "of the keys at a time (combine the results with merge)");
  for (const int64_t length : {most + 1, int64_t{1} << 38, int64_t{1} << 40, INT64_MAX}) {
    EXPECT_NE(message(length, length).find("accepted are 0 to 2147483647; plan longer"),
              std::string::npos)
        << message(length, length);
  }
  // What is accepted can be compiled for any tile shape, whatever the number of its tiles.
  const Plan longest = plan(window(0), 1, most);
  if (test::scaled(100) == 100) {  // minutes with a sanitizer
    EXPECT_EQ(longest.explain({1, 1}).pairs, 1);
    EXPECT_EQ(longest.explain().pairs, 1);
  }
}

TEST(CompilePlan, TilesThatHoldAPairAreCountedInPlainCoordinates) {
  const std::pair<const char*, double> rows[] = {{"dense", 64},
                                                 {"causal", 36},
                                                 {"blocks(64)", 8},
                                                 {"sinks(16)", 8},
                                                 {"global(16)", 15},
                                                 {"dilated(8)", 64},
                                                 {"~dense", 0},
                                                 {"global_at(0, 256)", 28},
                                                 {"causal & window(64)", 15},
                                                 {"random(64, 3, 1)", 24}};
  for (const auto& [text, tiles] : rows) {
    EXPECT_EQ(count_tiles(parse(text), {.q_len = 512, .k_len = 512}, {64, 64}), tiles) << text;
  }
  const Shape two_heads{.heads = 2, .q_len = 512, .k_len = 512};
  EXPECT_EQ(count_tiles(parse("per_head(dense, blocks(64))"), two_heads, {64, 64}), 64 + 8);
  // Every query tile is asked: a sample of 48 of the 128 would guess at the one full row.
  EXPECT_EQ(count_tiles(global(16), {.q_len = 8192, .k_len = 8192}, {64, 64}), 2 * 128 - 1);
}

// A kernel's tile is chosen by estimates: one long list must not make a shape look cheap or dear.
TEST(CompilePlan, EstimatesMeetTheOneLongListOfAGlobalToken) {
  const Shape shape{.q_len = 1 << 17, .k_len = 1 << 17};
  for (const char* text : {"bigbird(128, 3, 3, 2, 1)", "window(256) | global(16)"}) {
    const Pattern pattern = parse(text);
    for (const TileShape tile : {TileShape{128, 128}, {128, 64}, {64, 64}}) {
      const double counted = count_tiles(pattern, shape, tile);
      EXPECT_NEAR(plan(pattern, shape).state().estimate_tiles(tile), counted, 0.05 * counted)
          << text << ", tile " << to_string(tile);
    }
  }
}

TEST(CompilePlan, CausalIsTwoRunsPerQueryTile) {
  Plan causal_plan = plan(causal(), 1 << 16, 1 << 16);
  const TileLists& lists = causal_plan.state().tiles({128, 128}).parts.at(0);
  EXPECT_EQ(lists.runs.size(),
            2u * 512 - 1);  // the first tile has a diagonal and nothing before it
  EXPECT_EQ(lists.num_bitmaps(), 1);
  transpose(const_cast<TileLists&>(lists));
  EXPECT_EQ(lists.t_runs.size(), 2u * 512 - 1);
}

TEST(CompilePlan, AnchorsHaveTheTilesTheyShouldHave) {  // tiles of 128x128 at 16,384 tokens
  const std::pair<const char*, int64_t> rows[] = {{"causal", 8256},
                                                  {"causal & window(4095)", 3696},
                                                  {"causal & window(1023)", 1116},
                                                  {"causal & (window(1023) | sinks(4))", 1235},
                                                  {"causal & (window(63) | sinks(16))", 381},
                                                  {"causal & blocks(16)", 128},
                                                  {"causal & blocks(1024)", 576}};
  for (const auto& [text, tiles] : rows) {
    EXPECT_EQ(explain(text, 16384, {128, 128}).parts.at(0).tiles, tiles) << text;
  }
}

TEST(CompilePlan, DilatedPatternsAreCompiledInResidueClasses) {
  const PlanReport report = explain("causal & window(4095) & dilated(8)", 16384, {128, 128});
  ASSERT_EQ(report.parts.size(), 1u);
  EXPECT_EQ(report.parts[0].stride, 8);
  EXPECT_LT(report.waste, 0.25);
  EXPECT_LT(report.parts[0].bitmaps, 10);
}

TEST(CompilePlan, StridedIsAWindowPartAndADilatedPart) {
  const PlanReport report = explain("strided(128)", 16384, {64, 64});
  ASSERT_EQ(report.parts.size(), 2u);
  EXPECT_EQ(report.parts[0].stride, 1);
  EXPECT_EQ(report.parts[1].stride, 128);
  EXPECT_EQ(report.pairs, count_pairs(parse("strided(128)"), 16384, 16384));
}

TEST(CompilePlan, ThinPatternsBecomeLists) {
  for (const char* text : {"random(1, 128, 7)", "exponential", "causal & exponential"}) {
    const PlanReport report = explain(text, 8192, {64, 64});
    ASSERT_EQ(report.parts.size(), 1u) << text;
    EXPECT_EQ(report.parts[0].form, "gather") << text;
    EXPECT_EQ(report.waste, 0) << text;
  }
}

TEST(CompilePlan, AUnionOfAWindowAndRandomTokensHasOnePartOfEachForm) {
  const PlanReport report = explain("window(128) | random(1, 16, 3)", 16384, {64, 64});
  ASSERT_EQ(report.parts.size(), 2u);
  EXPECT_EQ(report.parts[0].form, "tiles");
  EXPECT_EQ(report.parts[1].form, "gather");
  EXPECT_EQ(report.pairs, count_pairs(parse("window(128) | random(1, 16, 3)"), 16384, 16384));
}

TEST(CompilePlan, EqualHeadsShareTheirLists) {
  const Pattern pattern = parse("per_head(causal, window(2000), causal, window(3000))");
  Plan heads = plan(pattern, Shape{2, 4, 512, 512, {}});
  const TileLists& lists = heads.state().tiles({64, 64}).parts.at(0);
  EXPECT_EQ(lists.groups, 2);  // both windows cover everything, so their lists are equal
  EXPECT_EQ(lists.group_of, (std::vector<int32_t>{0, 1, 0, 1, 0, 1, 0, 1}));
}

TEST(CompilePlan, HeadsAtOtherPositionsAreNotTakenForEqual) {
  // Batch entry 0 stands at 0 1 2 3, entry 1 at 3 2 1 0: causal is a triangle, then its mirror
  // image.
  const Pattern pattern = at({0, 1, 2, 3, 3, 2, 1, 0}, {0, 1, 2, 3}, causal());
  const Shape shape{2, 1, 4, 4, {}};
  Plan both = plan(pattern, shape);
  const TileLists& lists = both.state().tiles({16, 16}).parts.at(0);
  EXPECT_EQ(lists.groups, 2);
  EXPECT_EQ(lists.num_bitmaps(), 2);
}

TEST(CompilePlan, LongestListsComeFirst) {
  Plan causal_plan = plan(causal(), 256, 256);
  EXPECT_EQ(causal_plan.state().tiles({64, 64}).parts.at(0).order,
            (std::vector<int32_t>{3, 2, 1, 0}));
}

// What a backward pass asks before it writes dq instead of summing it up.
TEST(CompilePlan, SaysHowManyTilesListsHave) {
  struct Row {
    const char* text;
    Shape shape;
    int32_t fewest, most;
  };
  const Row rows[] = {
      {"dense", {.q_len = 512, .k_len = 512}, 4, 4},
      {"causal", {.q_len = 512, .k_len = 512}, 1, 4},
      {"causal & blocks(16)", {.q_len = 512, .k_len = 512}, 1, 1},
      {"blocks(128)", {.q_len = 500, .k_len = 500}, 1, 1},
      {"blocks(48)", {.q_len = 512, .k_len = 512}, 1, 2},  // 96 ... 144 meet two key tiles
      {"blocks(16)", {.q_len = 512, .k_len = 128}, 0, 1},  // queries behind the last key
      {"~dense", {.q_len = 512, .k_len = 512}, 0, 0},
      {"blocks(384) & dilated(3)", {.q_len = 1200, .k_len = 768, .offset = 0}, 0, 1},
      {"blocks(384) & dilated(3)", {.q_len = 769, .k_len = 769}, 1, 1},  // one class is longer
      {"per_head(blocks(64), ~dense)", {.heads = 2, .q_len = 512, .k_len = 512}, 0, 1},
      {"per_head(blocks(64), dense)", {.heads = 2, .q_len = 512, .k_len = 512}, 1, 4},
  };
  for (const Row& row : rows) {
    Plan made = make_plan(parse(row.text), row.shape, SplitPolicy::residues);
    const auto parts = made.state().view({64, 128}, false).tiles;
    ASSERT_EQ(parts.size(), 1u) << row.text;
    EXPECT_EQ(parts[0].lengths.fewest, row.fewest) << row.text;
    EXPECT_EQ(parts[0].lengths.most, row.most) << row.text;
  }
}

TEST(CompilePlan, SequenceTailsAreBitmaps) {
  const PlanReport report = explain("dense", 100, {64, 64});
  EXPECT_EQ(report.parts[0].full_tiles, 1);
  EXPECT_EQ(report.parts[0].partial_tiles, 3);
  EXPECT_EQ(report.pairs, 100 * 100);
}

TEST(CompilePlan, DenseAttentionPaysForTailsToo) {
  for (const int64_t length : {1, 5, 64, 100, 129}) {
    for (const TileShape tile : {TileShape{16, 16}, TileShape{64, 128}}) {
      EXPECT_EQ(explain("dense", length, tile).predicted_speedup, 1) << length;
      EXPECT_GE(explain("causal", length, tile).predicted_speedup, 1) << length;
    }
  }
}

TEST(CompilePlan, SpeedUpsOfAnySizeAreTold) {
  PlanReport report = explain("causal", 8, {16, 16});
  report.predicted_speedup = 13.28;
  EXPECT_EQ(report.speedup_text(), "13.3x");
  EXPECT_NE(report.text().find("13.3x over dense,"), std::string::npos);
  report.predicted_speedup = 0.0039;
  EXPECT_EQ(report.speedup_text(), "0.0039x");
  EXPECT_NE(report.text().find("0.0039x, slower than dense,"), std::string::npos);
  EXPECT_EQ(explain("~dense", 8, {16, 16}).speedup_text(), "none");
  EXPECT_NE(explain("~dense", 8, {16, 16}).text().find("nothing to compute"), std::string::npos);
}

TEST(CompilePlan, EmptyLengthsAndEmptyPatternsHaveNoTiles) {
  for (const auto& [q_len, k_len] : {std::pair{0, 0}, {0, 5}, {5, 0}, {1, 1}}) {
    Plan empty = plan(parse("~dense"), q_len, k_len);
    EXPECT_EQ(empty.explain({16, 16}).pairs, 0);
    EXPECT_EQ(empty.explain({16, 16}).visited_pairs, 0);
    empty.verify();
  }
}

TEST(CompilePlan, ALambdaCompilesAndSaysThatItIsSlow) {
  Plan odd =
      plan(lambda([](Position q, Position k) { return k <= q && k % 2 == 1; }, "odd"), 200, 200);
  const PlanReport report = odd.explain({64, 64});
  EXPECT_TRUE(report.draws_pair_by_pair);
  EXPECT_EQ(report.pairs, 100 * 100);
  EXPECT_NE(report.text().find("for every pair"), std::string::npos);
}

TEST(CompilePlan, SizesThatCannotBeAreRefused) {
  EXPECT_THROW(plan(causal(), -1, 5), Error);
  EXPECT_THROW(plan(causal(), int64_t{1} << 50, 5), Error);
  EXPECT_THROW(plan(parse("per_head(causal, dense)"), Shape{1, 3, 8, 8, {}}), Error);
  EXPECT_THROW(plan(causal(), 8, 8).explain({0, 64}), Error);
  EXPECT_THROW(plan(causal(), 8, 8).explain({64, 4096}), Error);
}

}  // namespace
}  // namespace keyhole
