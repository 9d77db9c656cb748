// tests/pattern/algebra_test.cpp
// The operators: how they print, what they keep when nothing changes, and how they sign. That their
// answers never contradict allows() is held by laws_test.cpp for all samples.
#include <gtest/gtest.h>

#include "keyhole/error.h"
#include "pattern/node.h"
#include "pattern/truth.h"

namespace keyhole::test {
namespace {

TEST(Algebra, PrintsNoMoreParenthesesThanParsingNeeds) {
  const Pattern a = causal(), b = sinks(1), c = blocks(2);
  EXPECT_EQ((a & b & c).text(), "causal & sinks(1) & blocks(2)");
  EXPECT_EQ((a & (b & c)).text(), "causal & sinks(1) & blocks(2)");
  EXPECT_EQ((a | (b | c)).text(), "causal | sinks(1) | blocks(2)");
  EXPECT_EQ((a | (b & c)).text(), "causal | sinks(1) & blocks(2)");
  EXPECT_EQ((a & (b | c)).text(), "causal & (sinks(1) | blocks(2))");
  EXPECT_EQ((~a & b).text(), "~causal & sinks(1)");
  EXPECT_EQ((~(a & b)).text(), "~(causal & sinks(1))");
  EXPECT_EQ((~(a | b) | c).text(), "~(causal | sinks(1)) | blocks(2)");
  EXPECT_EQ((~~a).text(), "~~causal");
  EXPECT_EQ((~streaming(1, 2) & a).text(), "~streaming(1, 2) & causal");
  EXPECT_EQ((a & a).text(), "causal & causal") << "what was written stays as it was written";
  EXPECT_EQ(Pattern(make_nothing()).text(), "~dense");
}

TEST(Algebra, PrintsWhatParseReads) {
  const Pattern a = window(2), b = sinks(1), c = blocks(3), d = strided(2);
  for (const Pattern& pattern :
       {a & b & c, a | (b & ~c), (a | b) & (c | d), ~(a | b), ~(~a & b), (a & b) | (c & d), ~~~a,
        a & (b | (c & (d | ~(a | b)))), per_head({a & b, c | d}) & ~per_batch({a})}) {
    EXPECT_EQ(parse(pattern.text()), pattern) << pattern;
  }
}

TEST(Algebra, EqualityIsThatOfExpressions) {
  EXPECT_EQ(causal() & sinks(2), causal() & sinks(2));
  EXPECT_NE(causal() & sinks(2), sinks(2) & causal());
  EXPECT_NE(causal() & sinks(2), causal() & sinks(3));
  EXPECT_NE(causal(), window(kUnbounded, 0));
  EXPECT_NE(strided(3), strided(4));
  EXPECT_NE(per_head({causal()}), per_batch({causal()}));
  EXPECT_EQ(at({1}, {2}, causal()), at({1}, {2}, causal()));
  EXPECT_NE(at({1}, {2}, causal()), at({1}, {3}, causal()));

  const auto make = [](int64_t parity) {
    return lambda([parity](Position q, Position k) { return (q + k) % 2 == parity; });
  };
  const Pattern even = make(0), odd = make(1);
  EXPECT_NE(even, odd) << "they print the same and answer differently";
  EXPECT_EQ(even, even);
  EXPECT_EQ(causal() & even, causal() & even);
  EXPECT_NE(causal() & even, causal() & odd);
}

TEST(Algebra, ResolvingKeepsWhatDoesNotDependOnAnything) {
  const Scope scope = {{.batch = 1, .heads = 2, .q_len = 8, .k_len = 8}, 0, 1};
  for (const Pattern& pattern :
       {causal() & sinks(2), ~causal(), strided(3), causal() | (blocks(2) & ~sinks(1))}) {
    EXPECT_TRUE(pattern.node()->is_resolved());
    EXPECT_EQ(pattern.node()->resolve(scope), pattern.node()) << pattern;
  }
  const Pattern chosen = ~(causal() & per_head({sinks(1), window(2)}));
  EXPECT_FALSE(chosen.node()->is_resolved());
  EXPECT_EQ(chosen.node()->resolve(scope)->text(), "~(causal & window(2))");

  // A chain that resolves inside a chain becomes part of it.
  const Pattern nested = causal() & per_head({sinks(1), window(2) & blocks(4)});
  EXPECT_EQ(nested.node()->resolve(scope)->children().size(), 3u);
}

// A child that says `all` or `none` everywhere in a rectangle adds nothing to the name, so that
// equal tiles are found equal however far they are from the others' edges.
TEST(Algebra, SignaturesForgetWhatDoesNotMatter) {
  const NodePtr node = (causal() & (window(100) | sinks(16))).node();
  const auto name = [&](Position q, Position k) {
    Signature signature;
    EXPECT_EQ(node->cover({{q, q + 8}, {k, k + 8}}), Cover::some);
    EXPECT_TRUE(node->sign({{q, q + 8}, {k, k + 8}}, signature));
    return signature.bytes();
  };
  EXPECT_EQ(name(64, 64), name(512, 512));
  EXPECT_EQ(name(512, 408), name(640, 536));
  EXPECT_NE(name(64, 64), name(512, 408));
}

// What follows a short signature must not be taken for its end: (cover, length) frames each child.
TEST(Algebra, SignaturesOfNeighboursDoNotRunTogether) {
  const Pattern pattern = (window(2) | blocks(3)) & (dilated(2) | sinks(3)) & ~global(2);
  const Truth truth(pattern.node(), {0, 24}, {0, 24});
  SignatureBook book;
  for (Position q = 0; q < 20; ++q) {
    for (Position k = 0; k < 20; ++k) {
      EXPECT_EQ(book.wrong_signature(truth, {{q, q + 4}, {k, k + 4}}), "");
    }
  }
  EXPECT_GT(book.num_shared(), 0);
}

TEST(Algebra, NotLeavesTheBitsBehindTheLastColumnClear) {
  for (const Position columns : {1, 63, 64, 65, 128, 130}) {
    const Rect rect = {{0, 3}, {10, 10 + columns}};
    BitRows bits(3, int32_t(columns));
    (~causal()).node()->draw(rect, bits);
    EXPECT_EQ(bits.count(), 3 * columns) << columns << " columns";
  }
}

TEST(Algebra, CompositionsMeanTheirDefinitions) {
  const Rect all = {{-6, 30}, {-6, 30}};
  const auto bitmap = [&](const Pattern& pattern) {
    return Truth(pattern.node(), all.q, all.k).bitmap(all);
  };
  for (const int64_t s : {1, 2, 5}) {
    EXPECT_EQ(bitmap(strided(s)), bitmap(causal() & (window(s - 1, 0) | dilated(s)))) << s;
    EXPECT_EQ(bitmap(streaming(s - 1, s)), bitmap(causal() & (window(s - 1) | sinks(s - 1)))) << s;
    EXPECT_EQ(bitmap(longformer(s, 2)), bitmap(window(s / 2) | global(2))) << s;
  }
}

}  // namespace
}  // namespace keyhole::test
