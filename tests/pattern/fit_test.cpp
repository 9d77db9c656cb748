// tests/pattern/fit_test.cpp
// What knows its sizes refuses others: every leaf of that kind, alone and inside everything that
// passes a call on, with other numbers of queries, keys, batch entries and heads. And what fits
// goes on working: decoding, offsets, explicit positions, documents of documents.
#include "pattern/fit.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>

#include "keyhole/plan.h"
#include "pattern/catalog.h"
#include "pattern/made_for.h"
#include "pattern/smallest_shape.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

std::vector<int64_t> count_up(int64_t length, int64_t first = 0) {
  std::vector<int64_t> numbers(static_cast<size_t>(length));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

// Shape{1, 1, q_len, k_len, offset}; "" where the pattern takes it.
std::string refusal(const Pattern& pattern, const Shape& shape) {
  const std::string message = message_of([&] { pattern.for_head(shape); });
  return message == "no error" ? "" : message;
}
std::string refusal(const Pattern& pattern, int64_t q_len, int64_t k_len,
                    std::optional<int64_t> offset = {}) {
  return refusal(pattern, Shape{.q_len = q_len, .k_len = k_len, .offset = offset});
}

struct Known {
  const char* name;
  Pattern pattern;
};

// All are for 8 positions.
std::vector<Known> for_eight_positions() {
  const std::vector<uint8_t> ones(64, 1), tile(4, 1);
  const std::vector<int64_t> four = count_up(5), zeros(4, 0);
  return {
      {"documents", documents({3, 5})},
      {"documents", parse("documents(3, 0, 5)")},
      {"tree", tree({-1, 0, 0, 1, 1, 2, 2, 3})},
      {"grid", grid(2, 4, 1, 1)},
      {"neighborhood", neighborhood(2, 4, 0, 1)},
      {"volume", volume(2, 2, 2, 1, 1, 0)},
      {"volume_neighborhood", volume_neighborhood(2, 2, 2, 1, 0, 1)},
      {"mask", mask(ones, 8, 8)},
      {"csr", csr(count_up(9), count_up(8))},
      {"tiles", tiles(2, 2, four, count_up(4))},
      {"bitmaps", bitmaps(2, 2, four, count_up(4), zeros, tile)},
      {"from_dense", made_for("from_dense", {8, 8}, causal())},
  };
}

// Every way in which a part meets the call that the whole meets.
std::vector<Pattern> inside(const Pattern& part) {
  return {part,
          ~part,
          part & causal(),
          sinks(1) | part,
          per_head({part}),
          per_batch({part}),
          ~(causal() & ~(part | window(2)))};
}

TEST(Fit, EightPositionsAreForEightKeysAndQueriesAmongThem) {
  for (const Known& known : for_eight_positions()) {
    for (const Pattern& pattern : inside(known.pattern)) {
      for (int64_t q_len = 0; q_len <= 8; ++q_len) {  // the last query is the last key: decoding
        EXPECT_EQ(refusal(pattern, q_len, 8), "") << pattern;
      }
      EXPECT_EQ(refusal(pattern, 3, 8, 2), "") << pattern;
      EXPECT_EQ(refusal(pattern, 3, 8, 0), "") << pattern;
      for (const auto& [q_len, k_len, offset] :
           std::vector<std::tuple<int64_t, int64_t, std::optional<int64_t>>>{
               {300, 300, {}},  // longer
               {9, 9, {}},
               {1, 9, {}},
               {5, 5, {}},  // shorter
               {9, 8, {}},  // more queries than keys: the first stands before all
               {3, 8, -1},
               {3, 8, 6}}) {
        const std::string message = refusal(pattern, q_len, k_len, offset);
        EXPECT_TRUE(message.starts_with(std::string(known.name) + ": made for "))
            << pattern << " for " << q_len << " x " << k_len << ": " << message;
      }
    }
  }
}

// A leaf that is new in the catalog, and knows its sizes, belongs into the table above.
TEST(Fit, TheTableHasAllThatKnowsItsSizes) {
  std::set<std::string_view> tested = {"packed"};  // counts its queries: below
  for (const Known& known : for_eight_positions()) tested.insert(known.name);
  for (const CatalogEntry& entry : catalog()) {
    NodePtr node = parse(entry.example).node();
    while (node->kind() == Node::Kind::named) node = node->children().front();
    const auto sizes = node->sizes();
    if (!sizes) continue;
    EXPECT_EQ(sizes->made_by, entry.name);
    EXPECT_EQ(tested.erase(entry.name), 1u) << entry.name << " is not in the table";
  }
  EXPECT_EQ(tested, std::set<std::string_view>{"from_dense"});
}

TEST(Fit, WhatCountsQueriesHasBothLengths) {
  const Pattern patterns[] = {packed({2, 5}, {4, 4}, causal()),
                              made_for("from_dense", {7, 8}, dense()),
                              at(count_up(7), count_up(8), dense())};
  for (const Pattern& part : patterns) {
    for (const Pattern& pattern : inside(part)) {
      for (const auto& offset : {std::optional<int64_t>{}, {0}, {-3}, {40}}) {
        EXPECT_EQ(refusal(pattern, 7, 8, offset), "") << pattern;
        for (const auto& [q_len, k_len] : {std::pair{8, 8}, {6, 8}, {7, 7}, {7, 9}, {300, 300}}) {
          EXPECT_NE(refusal(pattern, q_len, k_len, offset), "") << pattern;
        }
      }
    }
  }
}

TEST(Fit, ATileAtTheEndMayBeCutShort) {
  const Pattern pattern = tiles(4, 4, {0, 1, 2}, {0, 1});  // positions 0 to 4, ... or 7
  for (const int64_t length : {5, 6, 7, 8}) EXPECT_EQ(refusal(pattern, length, length), "");
  for (const int64_t length : {3, 4, 9}) EXPECT_NE(refusal(pattern, length, length), "");
  EXPECT_TRUE(
      refusal(pattern, 9, 9).starts_with("tiles: made for 5 to 8 positions and at least 5 keys"));
  // Rows that list the first keys alone are rows all the same.
  const Pattern first_keys = csr({0, 1, 2, 3, 4}, {0, 0, 0, 0});
  EXPECT_EQ(refusal(first_keys, 4, 4), "");
  EXPECT_EQ(refusal(first_keys, 2, 4, 1), "");
  EXPECT_EQ(refusal(first_keys, 2, 3),
            "csr: made for 4 positions and at least 1 key, but the call has 2 "
            "queries at positions 1 to 2 and 3 keys; give a row for each position; where row 0 is "
            "query 0, use from_csr, or a plan with offset 0");
  // Nobody said how many keys there are: with an offset, more than those that are listed.
  EXPECT_EQ(refusal(pattern, 8, 100, 0), "");
  EXPECT_NE(refusal(pattern, 8, 4, 0), "");
}

TEST(Fit, BatchEntriesAndHeadsAreThoseOfTheMask) {
  struct Row {
    MaskSizes sizes;
    int64_t batch, heads;
    bool fits;
  };
  const Row rows[] = {
      {{8, 8, 1, 1}, 3, 4, true},  {{8, 8, 2, 1}, 2, 4, true},  {{8, 8, 1, 4}, 3, 4, true},
      {{8, 8, 2, 4}, 2, 4, true},  {{8, 8, 2, 1}, 3, 4, false}, {{8, 8, 2, 1}, 1, 4, false},
      {{8, 8, 1, 4}, 3, 1, false}, {{8, 8, 1, 4}, 3, 8, false}, {{8, 8, 2, 4}, 4, 2, false},
      {{7, 8, 2, 4}, 2, 4, true},  {{7, 8, 2, 4}, 2, 3, false},
  };
  for (const Row& row : rows) {
    const Pattern pattern = made_for("from_dense", row.sizes, causal());
    const Shape shape{row.batch, row.heads, row.sizes.q_len, row.sizes.k_len};
    EXPECT_EQ(refusal(pattern, shape) == "", row.fits) << pattern;
    // A plan for one head would never see how many the call has.
    const bool knows_heads = row.sizes.batch > 1 || row.sizes.heads > 1;
    EXPECT_EQ(pattern.depends_on_heads(8, 8), knows_heads) << pattern;
    EXPECT_EQ(smallest_shape(pattern, 7, 8).batch, row.sizes.batch);
    EXPECT_EQ(smallest_shape(pattern, 7, 8).heads, row.sizes.heads);
  }
}

TEST(Fit, EachHeadAndEntryHasItsOwn) {
  const Pattern pattern =
      per_batch({documents({8}), documents({3, 5}), per_head({causal(), tree({-1, 0})})});
  const Shape shape{.batch = 3, .heads = 2, .q_len = 8, .k_len = 8};
  EXPECT_EQ(message_of([&] { pattern.for_head(shape, 1, 1); }), "no error");
  EXPECT_EQ(message_of([&] { pattern.for_head(shape, 2, 0); }), "no error");
  EXPECT_TRUE(message_of([&] { pattern.for_head(shape, 2, 1); }).starts_with("tree: made for 2"));
  EXPECT_TRUE(message_of([&] { plan(pattern, shape); }).starts_with("tree: made for 2"));
}

// `at` says where each token stands. What stands before 0 is outside on purpose; what stands behind
// the end is another call's.
TEST(Fit, ExplicitPositionsStayInside) {
  for (const Known& known : for_eight_positions()) {
    const auto at_positions = [&](std::vector<int64_t> q, std::vector<int64_t> k) {
      const int64_t q_len = int64_t(q.size()), k_len = int64_t(k.size());
      return refusal(at(std::move(q), std::move(k), known.pattern), q_len, k_len);
    };
    EXPECT_EQ(at_positions({7, 0, 3}, {0, 1, 7, 2}), "") << known.name;
    EXPECT_EQ(at_positions(count_up(300, -293), count_up(8)), "") << known.name;
    EXPECT_EQ(at_positions({-1, 5, -7}, {-1, -1, 3}), "") << known.name;
    EXPECT_NE(at_positions(count_up(300), count_up(300)), "") << known.name;
    EXPECT_NE(at_positions({8}, {0}), "") << known.name;
  }
  EXPECT_NE(refusal(at({0}, {8}, documents({3, 5})), 1, 1), "");
  EXPECT_EQ(refusal(at({0}, {8}, csr({0, 1}, {0})), 1, 1), "") << "it knows no number of keys";
}

TEST(Fit, EachDocumentOfPackedIsACall) {
  EXPECT_EQ(refusal(packed({8, 3}, {8, 8}, documents({3, 5})), 11, 16), "");
  EXPECT_EQ(refusal(packed({8, 3, 0, 4}, {8, 8, 5, 0}, grid(2, 4, 1, 1)), 15, 21), "");
  EXPECT_EQ(
      refusal(packed({8, 3}, {8, 9}, grid(2, 4, 1, 1)), 11, 17),
      "grid: made for 8 positions, but a document of packed has 3 queries at positions 6 to 8 "
      "and 9 keys; give sizes whose product is the number of keys; give tokens outside the "
      "grid positions below 0 with at(...); packed in the same pattern is made for 11 queries and "
      "17 "
      "keys");
}

TEST(Fit, SaysWhatItIsForWhatItGotAndTheWayOut) {
  EXPECT_EQ(refusal(documents({3, 5}), 300, 300),
            "documents: made for 8 positions, but the call has 300 queries at positions 0 to 299 "
            "and 300 keys; give lengths that add up to the keys; padding is a document, too");
  EXPECT_EQ(
      refusal(made_for("from_dense", {7, 8}, at(count_up(7), count_up(8), dense())), 8, 8),
      "from_dense: made for 7 queries and 8 keys, but the call has 8 queries and 8 keys; make "
      "it again for these sizes (a batch or heads of 1 serve any number)");
  EXPECT_EQ(refusal(mask(std::vector<uint8_t>(8, 1), 2, 4), 2, 4),
            "mask: made for queries at positions 0 to 1 and 4 keys, but the call has 2 queries at "
            "positions 2 to 3 and 4 keys; give a row for each position and a column for each key; "
            "where row 0 is query 0, use from_dense, or a plan with offset 0");
  EXPECT_EQ(
      refusal(made_for("from_mask_mod", {8, 8, 2, 4}, causal()), {3, 4, 8, 8}),
      "from_mask_mod: made for 8 positions, for 2 batch entries of 4 heads, but the call has 8 "
      "queries at positions 0 to 7 and 8 keys, for 3 batch entries of 4 heads; make it again "
      "for these sizes (a batch or heads of 1 serve any number)");
  EXPECT_EQ(refusal(at({0, 9}, {0, 1}, documents({1, 1})), 2, 2),
            "documents: made for 2 positions, but at puts queries at positions 0 to 9 and keys at "
            "positions 0 to 1; give lengths that add up to the keys; padding is a document, too");
}

TEST(Fit, TwoThatNoCallFitsAreBothNamed) {
  const std::string message = refusal(documents({3, 5}) & tree({-1, 0, 1}), 8, 8);
  EXPECT_NE(message.find("tree: made for 3 positions"), std::string::npos) << message;
  EXPECT_NE(message.find("documents in the same pattern is made for 8 positions"),
            std::string::npos)
      << message;
}

// The roads from a pattern to pairs.
TEST(Fit, EveryRoadRefuses) {
  const Pattern pattern = causal() & documents({3, 5});
  const auto refuses = [](const std::function<void()>& road) {
    return message_of(road).starts_with("documents: made for 8 positions");
  };
  EXPECT_TRUE(refuses([&] { plan(pattern, {.q_len = 9, .k_len = 9}); }));
  EXPECT_TRUE(refuses([&] { picture(pattern, 9, 9); }));
  EXPECT_TRUE(refuses([&] { count_pairs(pattern, 9, 9); }));
  EXPECT_TRUE(refuses([&] { pattern.for_head({.q_len = 9, .k_len = 9}); }));
}

TEST(MadeFor, IsThePatternItself) {
  const Pattern pattern =
      made_for("from_dense", {8, 8, 2, 3}, per_head({causal(), dense(), sinks(1)}));
  EXPECT_EQ(pattern.text(), "from_dense(<2x3x8x8>, per_head(causal, dense, sinks(1)))");
  const Shape shape{.batch = 2, .heads = 3, .q_len = 8, .k_len = 8};
  EXPECT_EQ(pattern.for_head(shape, 1, 2).node()->text(), "sinks(1)");
  EXPECT_FALSE(pattern ==
               made_for("from_dense", {8, 8, 1, 3}, per_head({causal(), dense(), sinks(1)})));
  EXPECT_TRUE(message_of([] {
                made_for("from_csr", {-1, 8}, causal());
              }).starts_with("from_csr: q_len is -1; accepted: 0 to "));
  EXPECT_TRUE(message_of([] {
                made_for("from_csr", {8, 8, 0}, causal());
              }).starts_with("from_csr: batch is 0; accepted: 1 to "));
}

TEST(OwnLengths, AreThoseOfTheArrays) {
  for (const Known& known : for_eight_positions()) {
    for (const Pattern& pattern : inside(known.pattern)) {
      const auto lengths = own_lengths(pattern);
      ASSERT_TRUE(lengths) << pattern;
      EXPECT_EQ(refusal(pattern, lengths->q_len, lengths->k_len), "") << pattern;
    }
  }
  const auto lengths = own_lengths(packed({2, 5}, {4, 4}, causal()) | sinks(1));
  ASSERT_TRUE(lengths);
  EXPECT_EQ(lengths->q_len, 7);
  EXPECT_EQ(lengths->k_len, 8);
  EXPECT_FALSE(own_lengths(causal() & window(3)));
  EXPECT_FALSE(own_lengths(at({0}, {0}, documents({1}))));
}

}  // namespace
}  // namespace keyhole::test
