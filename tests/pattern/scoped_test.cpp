// tests/pattern/scoped_test.cpp
// per_head, per_batch and at: what each head of each batch entry sees, and the errors when counts
// and sizes do not fit.
#include <gtest/gtest.h>

#include <numeric>

#include "base/random.h"
#include "keyhole/error.h"
#include "pattern/catalog.h"
#include "pattern/node.h"
#include "pattern/truth.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

TEST(PerHead, PicksByHeadAndByBatchEntry) {
  const Shape shape{.batch = 2, .heads = 3, .q_len = 4, .k_len = 4};
  const Pattern by_head = per_head({causal(), window(1), sinks(2)});
  const Pattern by_batch = per_batch({causal(), by_head});
  EXPECT_EQ(by_head.for_head(shape, 1, 2).node()->text(), "sinks(2)");
  EXPECT_EQ(by_batch.for_head(shape, 0, 2).node()->text(), "causal");
  EXPECT_EQ(by_batch.for_head(shape, 1, 1).node()->text(), "window(1)");
  EXPECT_EQ((by_head & ~blocks(2)).for_head(shape, 0, 0).node()->text(), "causal & ~blocks(2)");
  EXPECT_EQ(by_batch.text(), "per_batch(causal, per_head(causal, window(1), sinks(2)))");
}

TEST(PerHead, SaysHowManyAreWanted) {
  const Shape shape{.batch = 2, .heads = 4, .q_len = 4, .k_len = 4};
  EXPECT_EQ(
      message_of([&] { per_head({causal(), window(1)}).for_head(shape); }),
      "per_head: got 2 patterns for 4 query heads (in a selection: groups); give one for each of "
      "them");
  EXPECT_EQ(message_of([&] { per_batch({causal()}).for_head(shape, 1); }),
            "per_batch: got 1 patterns for 2 batch entries; give one for each of them");
  EXPECT_EQ(message_of([&] { per_head({}); }), "per_head: got no patterns; give at least one");
  EXPECT_NE(message_of([&] { per_head({causal()}).node()->allows(0, 0); }), "no error");
}

TEST(DependsOnHeads, IsWhatResolvingLooksAt) {
  struct Row {
    const char* text;
    bool depends;
  };
  const Row rows[] = {
      {"causal & (window(2) | random(2, 1, 7))", false},
      {"per_head(causal, dense)", true},
      {"per_batch(causal)", true},
      {"causal | ~per_head(causal, dense)", true},
      {"at(q=[0, 1, 2, 3], k=[3, 2, 1, 0], causal)", false},
      {"at(q=[0, 1, 2, 3], k=[3, 2, 1, 0, 0, 1, 2, 3], causal)", true},  // [batch, length]
      {"at(q=[0, 1, 2, 3], k=[3, 2, 1, 0], per_head(causal, dense))", true},
      {"at(q=[0, 1], k=[3, 2, 1, 0], causal)",
       true},  // fits nothing: to be said for the real shape
      {"packed([1, 3], [2, 2], random(1, 1, 3))", false},
      {"packed([1, 3], [2, 2], per_batch(causal, dense))", true},
      {"packed([2, 2], [2, 2], at(q=[1, 0], k=[0, 1], causal))", false},
      {"packed([2, 2], [2, 2], at(q=[1, 0, 0, 1], k=[0, 1], causal))", true},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(parse(row.text).depends_on_heads(4, 4), row.depends) << row.text;
  }
  EXPECT_FALSE(lambda([](Position, Position) { return true; }).depends_on_heads(4, 4));
}

// Where a pattern does not depend on heads, each of them sees what the only one of a shape does.
TEST(DependsOnHeads, AllHeadsOfTheOthersSeeTheSame) {
  const Shape one{.q_len = 9, .k_len = 12}, many{.batch = 2, .heads = 3, .q_len = 9, .k_len = 12};
  int64_t independent = 0;
  for (const std::string& text : sample_texts()) {
    const Pattern pattern = parse(text);
    if (pattern.depends_on_heads(one.q_len, one.k_len)) continue;
    ++independent;
    const NodePtr node = pattern.node();
    const std::string expected = node->resolve({one})->text();
    for (int64_t i = 0; i < many.batch * many.heads; ++i) {
      EXPECT_EQ(node->resolve({many, i / many.heads, i % many.heads})->text(), expected);
    }
  }
  EXPECT_GT(independent, 20);
}

// By definition: the child's answer at the given positions, nothing outside the arrays.
void expect_definition(const Pattern& child, const std::vector<Position>& q_positions,
                       const std::vector<Position>& k_positions, int64_t offset) {
  const int64_t q_len = int64_t(q_positions.size()), k_len = int64_t(k_positions.size());
  const Shape shape{.q_len = q_len, .k_len = k_len, .offset = offset};
  const NodePtr node = at(q_positions, k_positions, child).for_head(shape).node();
  const Truth truth(node, {offset - 3, offset + q_len + 3}, {-3, k_len + 3});
  for (Position q = truth.q().begin; q < truth.q().end; ++q) {
    for (Position k = truth.k().begin; k < truth.k().end; ++k) {
      const Position i = q - offset;
      const bool inside = i >= 0 && i < q_len && k >= 0 && k < k_len;
      ASSERT_EQ(truth.allows(q, k),
                inside && child.node()->allows(q_positions[size_t(i)], k_positions[size_t(k)]))
          << node->text();
    }
  }
  SignatureBook book;
  for (Position q = truth.q().begin; q < truth.q().end; q += 2) {
    for (Position k = truth.k().begin; k < truth.k().end; k += 2) {
      for (const Position size : {1, 4, 9}) {
        const Rect rect = {intersect({q, q + size}, truth.q()),
                           intersect({k, k + size}, truth.k())};
        const Rect wide = {rect.q, truth.k()};
        for (const Position grain : {1, 3, 100}) {
          ASSERT_EQ(wrong_strip(truth, rect, grain), "");
          ASSERT_EQ(wrong_strip(truth, wide, grain), "");
        }
        ASSERT_EQ(wrong_cover(truth, rect), "");
        ASSERT_EQ(wrong_drawing(truth, rect), "");
        ASSERT_EQ(book.wrong_signature(truth, rect), "");
      }
    }
  }
}

TEST(At, AsksTheChildAtTheGivenPositions) {
  Random random(3);
  const Pattern children[] = {causal(), window(2, 1), blocks(4) & causal(), strided(3), ~sinks(3)};
  const auto ascending = [](int64_t size, Position first) {
    std::vector<Position> positions(static_cast<size_t>(size));
    std::iota(positions.begin(), positions.end(), first);
    return positions;
  };
  for (const Pattern& child : children) {
    expect_definition(child, ascending(12, 0), ascending(12, 0), 0);
    expect_definition(child, ascending(9, -4), ascending(14, 3), 5);
    expect_definition(child, {}, ascending(3, 0), 0);
    std::vector<Position> zigzag = ascending(6, 0), other = ascending(6, 18);
    zigzag.insert(zigzag.end(), other.begin(), other.end());
    expect_definition(child, zigzag, ascending(24, 0), 0);
    expect_definition(child, zigzag, zigzag, -2);
    std::vector<Position> scattered, repeated(13, 7);
    for (int i = 0; i < 20; ++i) scattered.push_back(random.between(-5, 20));
    expect_definition(child, scattered, ascending(15, 0), 0);
    expect_definition(child, ascending(15, 0), scattered, 0);
    expect_definition(child, scattered, scattered, 3);
    expect_definition(child, repeated, scattered, 0);
  }
}

// Two halves of a sequence on one device: a causal plan of it must not cost pair by pair.
TEST(At, StaysCoarseOnRuns) {
  const int64_t half = 4096;
  std::vector<Position> positions;
  for (Position p = 0; p < half; ++p) positions.push_back(p);
  for (Position p = 3 * half; p < 4 * half; ++p) positions.push_back(p);
  const Shape shape{.q_len = 2 * half, .k_len = 2 * half};
  const NodePtr node = at(positions, positions, causal()).for_head(shape).node();
  Strip strip;
  node->strip({half, half + 128}, {0, 2 * half}, 128, strip);
  ASSERT_EQ(strip.size(), 2u);
  EXPECT_EQ(strip[0], (Segment{0, half + 1, Cover::all}));
  EXPECT_EQ(strip[1], (Segment{half + 1, half + 128, Cover::some}));

  Signature here, there;
  EXPECT_TRUE(node->sign({{0, 128}, {0, 128}}, here));
  EXPECT_TRUE(node->sign({{half, half + 128}, {half, half + 128}}, there));
  EXPECT_EQ(here.bytes(), there.bytes());
}

// Scattered keys are asked in groups: the strip has no more segments than the grain allows.
TEST(At, StaysCoarseOnScatteredKeys) {
  Random random(4);
  std::vector<Position> queries(256), keys(4096);
  std::iota(queries.begin(), queries.end(), 0);
  for (Position& key : keys) key = random.below(100000);
  const Shape shape{.q_len = 256, .k_len = 4096};
  const NodePtr node = at(queries, keys, window(500)).for_head(shape).node();
  Strip strip;
  node->strip({3840, 3968}, {0, 4096}, 128, strip);
  EXPECT_LE(strip.size(), 2 * 4096 / 128u);
}

TEST(At, TakesItsArraysApartBySize) {
  const Shape shape{.batch = 2, .heads = 2, .q_len = 1, .k_len = 2};
  // Position 100 + 10 * batch + head for the query of each head; a key at each position 110, 111.
  const Pattern exact = at({100, 101, 110, 111}, {110, 111}, window(0));
  for (int64_t batch = 0; batch < 2; ++batch) {
    for (int64_t head = 0; head < 2; ++head) {
      const HeadPattern seen = exact.for_head(shape, batch, head);
      EXPECT_EQ(seen.allows(0, 0), batch == 1 && head == 0);
      EXPECT_EQ(seen.allows(0, 1), batch == 1 && head == 1);
    }
  }
  const Pattern by_batch = at({1}, {0, 1, 1, 2}, window(0));
  EXPECT_TRUE(by_batch.for_head(shape, 0, 1).allows(0, 1));
  EXPECT_TRUE(by_batch.for_head(shape, 1, 0).allows(0, 0));
  EXPECT_FALSE(by_batch.for_head(shape, 1, 0).allows(0, 1));
}

TEST(At, SaysWhichSizesAreAccepted) {
  const Shape shape{.batch = 2, .heads = 3, .q_len = 4, .k_len = 5};
  EXPECT_EQ(message_of([&] { at({0, 1, 2}, {0, 1, 2, 3, 4}, causal()).for_head(shape); }),
            "at: q has 3 positions; accepted: 4 [length], 8 [batch, length] or 24 [batch, heads, "
            "length]");
  EXPECT_EQ(message_of([&] { at({0, 1, 2, 3}, {}, causal()).for_head(shape); }),
            "at: k has 0 positions; accepted: 5 [length], 10 [batch, length] or 30 [batch, heads, "
            "length]");
  EXPECT_NE(message_of([] { at({INT64_MAX}, {0}, causal()); }), "no error");
}

TEST(At, PrintsItsListsWhileTheyAreShort) {
  EXPECT_EQ(at({0, 1, -2}, {5}, causal() | sinks(1)).text(),
            "at(q=[0, 1, -2], k=[5], causal | sinks(1))");
  const std::vector<Position> longest(4096, 1), too_long(4097, 1);
  EXPECT_EQ(at(longest, {0}, causal()).text().size(),
            3 * 4096 + std::string("at(q=[], k=[0], causal)").size() - 2);
  const std::string text = at(too_long, {0}, causal()).text();
  EXPECT_EQ(text, "at(q=<4097 positions #cc9834c872c3efa4>, k=[0], causal)");
  std::vector<Position> other = too_long;
  other[77] = 2;
  EXPECT_NE(at(other, {0}, causal()).text(), text);
}

}  // namespace
}  // namespace keyhole::test
