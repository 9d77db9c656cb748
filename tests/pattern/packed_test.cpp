// tests/pattern/packed_test.cpp
// packed: each document is the pattern alone, on its own lengths; and a plan of many documents is
// as coarse as they are. The laws of laws_test.cpp hold it to allows(); here allows() is held to
// its definition.
#include <gtest/gtest.h>

#include <numeric>

#include "keyhole/error.h"
#include "pattern/node.h"
#include "support/message_of.h"

namespace keyhole::test {
namespace {

// Document by document: what the pattern says of the document's own lengths.
void expect_definition(const Pattern& inner, const std::vector<int64_t>& q_lengths,
                       const std::vector<int64_t>& k_lengths, const Shape& shape) {
  const Pattern pattern = packed(q_lengths, k_lengths, inner);
  for (int64_t head = 0; head < shape.heads; ++head) {
    std::vector<char> expected(size_t(shape.q_len * shape.k_len));
    int64_t first_query = 0, first_key = 0;
    for (size_t d = 0; d < q_lengths.size(); ++d) {
      Shape alone = shape;
      alone.q_len = q_lengths[d], alone.k_len = k_lengths[d], alone.offset.reset();
      const HeadPattern document = inner.for_head(alone, 0, head);
      for (int64_t q = 0; q < alone.q_len && first_query + q < shape.q_len; ++q) {
        for (int64_t k = 0; k < alone.k_len && first_key + k < shape.k_len; ++k) {
          const int64_t pair = (first_query + q) * shape.k_len + first_key + k;
          expected[size_t(pair)] = document.allows(q, k);
        }
      }
      first_query += alone.q_len, first_key += alone.k_len;
    }
    const HeadPattern whole = pattern.for_head(shape, 0, head);
    for (int64_t q = 0; q < shape.q_len; ++q) {
      for (int64_t k = 0; k < shape.k_len; ++k) {
        ASSERT_EQ(whole.allows(q, k), bool(expected[size_t(q * shape.k_len + k)]))
            << pattern << ", head " << head << ", pair (" << q << ", " << k << ")";
      }
    }
  }
}

TEST(Packed, EachDocumentIsThePatternAlone) {
  const Pattern inners[] = {dense(),
                            causal(),
                            causal() & (window(2) | sinks(1)),
                            blocks(3),
                            prefix(2),
                            random(2, 1, 5),
                            global(1),
                            ~window(1),
                            strided(3),
                            per_head({causal(), window(1)})};
  for (const Pattern& inner : inners) {
    for (const auto& offset : {std::optional<int64_t>{}, {-3}, {40}}) {  // the whole's is no matter
      expect_definition(inner, {4, 0, 3, 6, 1}, {7, 2, 0, 6, 4},
                        {.heads = 2, .q_len = 14, .k_len = 19, .offset = offset});
      expect_definition(inner, {5, 3, 2}, {3, 5, 0},  // padding: queries that see nothing
                        {.heads = 2, .q_len = 10, .k_len = 8, .offset = offset});
    }
  }
}

TEST(Packed, IsDocumentsWhereLengthsAreEqual) {
  const std::vector<int64_t> lengths = {5, 0, 9, 2};
  EXPECT_EQ(picture(packed(lengths, lengths, causal() & window(3)), 16, 16),
            picture(documents(lengths) & causal() & window(3), 16, 16));
}

TEST(Packed, AnEmptyBatchHasNoPairs) {
  EXPECT_EQ(count_pairs(packed({}, {}, dense()), 0, 0), 0);
  EXPECT_EQ(count_pairs(packed({4, 0}, {0, 4}, dense()), 4, 4), 0);
}

// One query for each of many sequences, as a serving step has them.
TEST(Packed, CountsWithoutVisitingPairs) {
  const std::vector<int64_t> ones(256, 1);
  std::vector<int64_t> context(256);
  std::iota(context.begin(), context.end(), 100000);
  const int64_t keys = std::accumulate(context.begin(), context.end(), int64_t{0});
  EXPECT_EQ(count_pairs(packed(ones, context, causal()), 256, keys), keys);
  EXPECT_EQ(count_pairs(packed(ones, context, streaming(4, 100)), 256, keys), 256 * 104);
}

TEST(Packed, StaysCoarseInsideADocument) {
  const int64_t length = 4096;
  const Shape shape{.q_len = 2 * length, .k_len = 3 * length};
  const NodePtr node =
      packed({length, length}, {2 * length, length}, causal()).for_head(shape).node();
  const Position first = shape.q_offset() + length;  // of the second document
  Strip strip;
  node->strip({first + 128, first + 256}, {0, 3 * length}, 128, strip);
  ASSERT_EQ(strip.size(), 2u);
  EXPECT_EQ(strip[0], (Segment{2 * length, 2 * length + 129, Cover::all}));
  EXPECT_EQ(strip[1], (Segment{2 * length + 129, 2 * length + 256, Cover::some}));

  // The diagonals of all documents are one bitmap.
  Signature here, there;
  EXPECT_TRUE(node->sign({{first - 128, first}, {2 * length - 128, 2 * length}}, here));
  EXPECT_TRUE(node->sign({{first, first + 128}, {2 * length, 2 * length + 128}}, there));
  EXPECT_EQ(here.bytes(), there.bytes());
}

// A band over several documents asks only the long ones: the strip has few segments.
TEST(Packed, StaysCoarseOverManyDocuments) {
  const std::vector<int64_t> lengths(1000, 3);
  const Shape shape{.q_len = 3000, .k_len = 3000};
  const NodePtr node = packed(lengths, lengths, causal()).for_head(shape).node();
  Strip strip;
  node->strip({128, 256}, {0, 3000}, 128, strip);
  ASSERT_EQ(strip.size(), 1u);
  EXPECT_EQ(strip[0], (Segment{126, 258, Cover::some}));
}

TEST(Packed, SaysWhatLengthsItTakes) {
  EXPECT_EQ(
      message_of([] { packed({1, 2}, {3}, causal()); }),
      "packed: got 2 q_lengths and 1 k_lengths; each document has one of both, 0 where it has "
      "no queries or no keys");
  EXPECT_EQ(message_of([] { packed({1, -2}, {3, 4}, causal()); }),
            "packed: q_lengths[1] is -2; lengths must be 0 or more");
  EXPECT_EQ(message_of([] { packed({1, 2}, {INT64_MAX, 4}, causal()); }),
            "packed: k_lengths add up to more than 1152921504606846975");
  // `at` has the lengths of its positions, documents have their own.
  EXPECT_NE(message_of([] {
              packed({1, 2}, {2, 2}, at({0}, {0, 1}, causal())).for_head({.q_len = 3, .k_len = 4});
            }).find("at: q has 1 positions"),
            std::string::npos);
}

TEST(Packed, PrintsItsLengthsWhileTheyAreShort) {
  EXPECT_EQ(packed({2, 0}, {1, 3}, causal() | sinks(1)).text(),
            "packed([2, 0], [1, 3], causal | sinks(1))");
  const std::vector<int64_t> many(5000, 1);
  EXPECT_EQ(packed(many, many, causal()).text(),
            "packed(<5000 lengths #cfec941154e217a5>, <5000 lengths #cfec941154e217a5>, causal)");
}

// Heads whose inner patterns differ must not look equal to the planner.
TEST(Packed, TheTextOfAHeadIsItsOwn) {
  const Shape shape{.heads = 2, .q_len = 5, .k_len = 5};
  const Pattern pattern = packed({2, 3}, {2, 3}, per_head({causal(), window(1)}));
  EXPECT_EQ(pattern.for_head(shape, 0, 0).node()->text(), "packed([2, 3], [2, 3], causal)");
  EXPECT_EQ(pattern.for_head(shape, 0, 1).node()->text(), "packed([2, 3], [2, 3], window(1))");
}

}  // namespace
}  // namespace keyhole::test
