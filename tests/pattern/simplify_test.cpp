// tests/pattern/simplify_test.cpp
// Each rewrite once, as text; and that no rewrite changes a pair. The latter for random expressions
// is in rapidcheck_laws_test.cpp.
#include "pattern/simplify.h"

#include <gtest/gtest.h>

#include "pattern/catalog.h"
#include "pattern/samples.h"
#include "pattern/truth.h"

namespace keyhole::test {
namespace {

struct Rewrite {
  const char* written;
  const char* simplified;
};
constexpr Rewrite kRewrites[] = {
    // neutral and settling patterns
    {"dense & sinks(2)", "sinks(2)"},
    {"sinks(2) & dense", "sinks(2)"},
    {"~dense & sinks(2)", "~dense"},
    {"sinks(2) | dense", "dense"},
    {"sinks(2) | ~dense", "sinks(2)"},
    {"dense & dense", "dense"},
    {"~dense | ~dense", "~dense"},
    {"~~sinks(2)", "sinks(2)"},
    {"~~~sinks(2)", "~sinks(2)"},
    {"~~dense", "dense"},
    // said twice
    {"sinks(2) & sinks(2)", "sinks(2)"},
    {"sinks(2) | blocks(3) | sinks(2)", "sinks(2) | blocks(3)"},
    {"(sinks(2) | blocks(3)) & (sinks(2) | blocks(3))", "sinks(2) | blocks(3)"},
    // bands
    {"window(inf)", "dense"},
    {"window(inf, 0)", "causal"},
    {"causal & window(3)", "window(3, 0)"},
    {"window(3) & causal", "window(3, 0)"},
    {"causal & sinks(1) & window(3)", "window(3, 0) & sinks(1)"},
    {"window(5, 1) & window(2, 4)", "window(2, 1)"},
    {"window(3, -2) & window(1, 4)", "~dense"},
    {"causal | window(0, 3)", "window(inf, 3)"},
    {"causal | window(-1, 3)", "window(inf, 3)"},
    {"causal | window(-2, 3)", "causal | window(-2, 3)"},
    {"causal | window(-1, inf)", "dense"},
    {"~causal", "window(-1, inf)"},
    {"~window(inf, 3)", "window(-4, inf)"},
    {"~window(3, inf)", "window(inf, -4)"},
    {"~window(3)", "~window(3)"},
    {"~~causal & window(2)", "window(2, 0)"},
    // names are dropped, and what they hold joins its neighbours
    {"streaming(1, 3)", "causal & (window(2) | sinks(1))"},
    {"streaming(1, 3) & window(1)", "window(1, 0) & (window(2) | sinks(1))"},
    {"longformer(4, 1) | window(3)", "window(3) | global(1)"},
    {"strided(4)", "causal & (window(3, 0) | dilated(4))"},
    // left alone
    {"causal & blocks(3)", "causal & blocks(3)"},
    {"dilated(2) & dilated(3)", "dilated(2) & dilated(3)"},
};

TEST(Simplify, EachRewrite) {
  const Rect all = {{-8, 20}, {-8, 20}};
  for (const Rewrite& rewrite : kRewrites) {
    const NodePtr node = parse(rewrite.written).node(), simple = simplify(node);
    EXPECT_EQ(simple->text(), rewrite.simplified) << rewrite.written;
    EXPECT_EQ(Truth(node, all.q, all.k).bitmap(all), Truth(simple, all.q, all.k).bitmap(all))
        << rewrite.written;
    EXPECT_EQ(simplify(simple)->text(), simple->text()) << "simple is simple enough";
  }
}

TEST(Simplify, KeepsTheNodeWhenThereIsNothingToDo) {
  for (const char* text : {"causal", "window(3)", "causal & blocks(3)", "~window(3) | sinks(1)",
                           "~(blocks(2) & ~sinks(1))"}) {
    const Pattern pattern = parse(text);
    EXPECT_EQ(simplify(pattern.node()), pattern.node()) << text;
  }
}

TEST(Simplify, DoesNotMergeFunctionsThatPrintTheSame) {
  const Pattern even = lambda([](Position q, Position k) { return (q + k) % 2 == 0; });
  const Pattern odd = lambda([](Position q, Position k) { return (q + k) % 2 != 0; });
  EXPECT_EQ(even.text(), odd.text());
  EXPECT_TRUE(simplify((even | odd).node())->allows(0, 1));
  EXPECT_FALSE(simplify((even & odd).node())->allows(0, 0));
  EXPECT_EQ(simplify((even & even).node()), even.node());
}

TEST(Simplify, ChangesNoPairOfAnySample) {
  for (const SampleView& sample : sample_views()) {
    const Position first = sample.shape.q_offset();
    const Rect all = {{first - 2, first + sample.shape.q_len + 2}, {-2, sample.shape.k_len + 2}};
    const NodePtr simple = simplify(sample.node);
    EXPECT_EQ(Truth(sample.node, all.q, all.k).bitmap(all), Truth(simple, all.q, all.k).bitmap(all))
        << sample.text << " became " << simple->text();
  }
}

}  // namespace
}  // namespace keyhole::test
