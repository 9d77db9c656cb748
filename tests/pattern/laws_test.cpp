// tests/pattern/laws_test.cpp
// Holds for every leaf and every operator, on every rectangle of a small grid. A new leaf is
// covered the moment it is listed in the catalog; there is no test to write by hand.
#include <gtest/gtest.h>

#include <unordered_set>

#include "pattern/samples.h"
#include "pattern/truth.h"
#include "support/generator.h"
#include "support/scale.h"

namespace keyhole::test {
namespace {

// The positions of a sample and two more on every side: nodes answer for any position.
struct View {
  SampleView sample;
  Truth truth;
};
const std::vector<View>& views() {
  static const std::vector<View> all = [] {
    std::vector<View> list;
    for (const SampleView& sample : sample_views()) {
      const Position first = sample.shape.q_offset();
      list.push_back({sample, Truth(sample.node, {first - 2, first + sample.shape.q_len + 2},
                                    {-2, sample.shape.k_len + 2})});
    }
    return list;
  }();
  return all;
}

std::vector<Span> all_spans(Span within, Position step = 1) {
  std::vector<Span> spans;
  for (Position begin = within.begin; begin < within.end; begin += step) {
    for (Position end = begin + 1; end <= within.end; ++end) {
      if (step == 1 || end == within.end || (end - begin) % step == 1)
        spans.push_back({begin, end});
    }
  }
  return spans;
}

// Calls law(rect) for all rectangles, on larger grids for every third corner; stops at what is
// wrong. Sanitizers are slow, and get rectangles of every other corner of these.
template <class Law>
void expect_everywhere(const Truth& truth, const std::string& where, Law law) {
  const Position step =
      (truth.q().size() * truth.k().size() > 150 ? 3 : 1) * (scaled(100) < 100 ? 2 : 1);
  for (const Span q : all_spans(truth.q(), step)) {
    for (const Span k : all_spans(truth.k(), step)) {
      const std::string wrong = law(Rect{q, k});
      if (wrong.empty()) continue;
      ADD_FAILURE() << where << ": " << wrong;
      return;
    }
  }
}
template <class Law>
void expect_of_all_samples(Law law) {
  for (const View& view : views()) {
    expect_everywhere(view.truth, view.sample.text,
                      [&](const Rect& rect) { return law(view.truth, rect); });
  }
}

TEST(PatternLaws, CoverNeverContradictsAllows) { expect_of_all_samples(wrong_cover); }

// Also: one query at grain 1 knows exactly what it sees.
TEST(PatternLaws, StripsNeverContradictAllows) {
  for (const Position grain : {1, 2, 5, 64}) {
    expect_of_all_samples(
        [&](const Truth& truth, const Rect& rect) { return wrong_strip(truth, rect, grain); });
  }
}

TEST(PatternLaws, DrawingIsAskingPairByPair) { expect_of_all_samples(wrong_drawing); }

TEST(PatternLaws, EqualSignaturesAreEqualBitmaps) {
  for (const View& view : views()) {
    SignatureBook book;
    expect_everywhere(view.truth, view.sample.text,
                      [&](const Rect& rect) { return book.wrong_signature(view.truth, rect); });
  }
}

TEST(PatternLaws, ARectangleOfNothingIsEmpty) {
  for (const View& view : views()) {
    if (view.truth.node().is_opaque())
      continue;  // says `some` of everything, which is always right
    for (const Rect& rect : {Rect{{0, 0}, {0, 4}}, Rect{{0, 4}, {3, 3}}}) {
      Strip strip;
      view.truth.node().strip(rect.q, rect.k, 1, strip);
      EXPECT_TRUE(strip.empty()) << view.sample.text << " on " << to_text(rect);
    }
  }
}

// Inside a residue class a node is another one, which obeys the same laws and agrees pair by pair.
TEST(PatternLaws, ResidueClassesAreTheSamePattern) {
  std::unordered_set<const Node*> done;  // most nodes are the same for every shape
  for (const View& view : views()) {
    if (!done.insert(view.sample.node.get()).second) continue;
    for (const auto& [stride, residue] :
         {std::pair{1, 0}, {2, 0}, {2, 1}, {3, 0}, {3, 2}, {8, 0}, {8, 3}, {8, 7}}) {
      const NodePtr inner = view.sample.node->in_residue(stride, residue);
      const Span positions = {-3, 4};
      const std::string where = view.sample.text + " at residue " + std::to_string(residue) +
                                " modulo " + std::to_string(stride);
      for (Position q = positions.begin; q < positions.end; ++q) {
        for (Position k = positions.begin; k < positions.end; ++k) {
          ASSERT_EQ(inner->allows(q, k),
                    view.sample.node->allows(residue + stride * q, residue + stride * k))
              << where << ", pair (" << q << ", " << k << ")";
        }
      }
      const Truth truth(inner, positions, positions);
      SignatureBook book;
      expect_everywhere(truth, where, [&](const Rect& rect) {
        std::string wrong = wrong_cover(truth, rect);
        if (wrong.empty() && stride == 1) wrong = wrong_strip(truth, rect, 1);
        if (wrong.empty()) wrong = wrong_strip(truth, rect, 2);
        if (wrong.empty()) wrong = wrong_drawing(truth, rect);
        if (wrong.empty()) wrong = book.wrong_signature(truth, rect);
        return wrong;
      });
    }
  }
}

// Small grids never leave one word of a bitmap and never fill a tile: random expressions, on random
// rectangles of lengths up to a few hundred.
TEST(PatternLaws, HoldForRandomExpressionsOnLargeRectangles) {
  Random random(20240607);
  int64_t num_signed = 0, num_shared = 0;
  for (int i = 0; i < 300; ++i) {
    Shape shape{.batch = 1,
                .heads = random.between(1, 2),
                .q_len = random.between(1, 260),
                .k_len = random.between(1, 260)};
    if (random.chance(20)) shape.offset = random.between(-40, 40);
    const Pattern pattern = build(draw_pattern(random, shape), shape);
    const HeadPattern head = pattern.for_head(shape, 0, random.below(shape.heads));
    const Position first = shape.q_offset();
    const Truth truth(head.node(), {first - 3, first + shape.q_len + 3}, {-3, shape.k_len + 3});
    const auto draw_span = [&](Span within) {
      const Position begin = random.between(within.begin, within.end - 1);
      const Position sizes[] = {1, 16, 32, 64, 128, random.between(1, within.size())};
      return Span{begin, std::min(within.end, begin + sizes[random.below(6)])};
    };
    SignatureBook book;
    for (int j = 0; j < 40; ++j) {
      const Rect rect = {draw_span(truth.q()), draw_span(truth.k())};
      const Position grain = random.pick({1, 7, 16, 64, 128});
      EXPECT_EQ(wrong_cover(truth, rect), "");
      EXPECT_EQ(wrong_strip(truth, rect, grain), "");
      EXPECT_EQ(wrong_drawing(truth, rect), "");
    }
    const Position tile = random.pick({8, 16, 32});  // a grid of tiles, as the planner asks
    for (Position q = first; q < first + shape.q_len; q += tile) {
      for (Position k = 0; k < shape.k_len; k += tile) {
        const Rect rect = {intersect({q, q + tile}, truth.q()),
                           intersect({k, k + tile}, truth.k())};
        EXPECT_EQ(book.wrong_signature(truth, rect), "");
      }
    }
    num_signed += book.num_signed();
    num_shared += book.num_shared();
    if (::testing::Test::HasFailure()) FAIL() << "case " << i << ": " << pattern.text();
  }
  EXPECT_GT(num_signed, 1000);
  EXPECT_GT(num_shared, num_signed / 4) << "signatures are there to be shared";
}

// ---- the operators
// --------------------------------------------------------------------------------

struct SetLaw {
  const char* name;
  Pattern (*left)(const Pattern& a, const Pattern& b, const Pattern& c);
  Pattern (*right)(const Pattern& a, const Pattern& b, const Pattern& c);
};
using P = const Pattern&;
constexpr SetLaw kSetLaws[] = {
    {"commutative and", [](P a, P b, P) { return a & b; }, [](P a, P b, P) { return b & a; }},
    {"commutative or", [](P a, P b, P) { return a | b; }, [](P a, P b, P) { return b | a; }},
    {"associative and", [](P a, P b, P c) { return (a & b) & c; },
     [](P a, P b, P c) { return a & (b & c); }},
    {"associative or", [](P a, P b, P c) { return (a | b) | c; },
     [](P a, P b, P c) { return a | (b | c); }},
    {"and over or", [](P a, P b, P c) { return a & (b | c); },
     [](P a, P b, P c) { return (a & b) | (a & c); }},
    {"or over and", [](P a, P b, P c) { return a | (b & c); },
     [](P a, P b, P c) { return (a | b) & (a | c); }},
    {"De Morgan, and", [](P a, P b, P) { return ~(a & b); }, [](P a, P b, P) { return ~a | ~b; }},
    {"De Morgan, or", [](P a, P b, P) { return ~(a | b); }, [](P a, P b, P) { return ~a & ~b; }},
    {"absorption, and", [](P a, P b, P) { return a & (a | b); }, [](P a, P, P) { return a; }},
    {"absorption, or", [](P a, P b, P) { return a | (a & b); }, [](P a, P, P) { return a; }},
    {"idempotent and", [](P a, P, P) { return a & a; }, [](P a, P, P) { return a; }},
    {"idempotent or", [](P a, P, P) { return a | a; }, [](P a, P, P) { return a; }},
    {"double negation", [](P a, P, P) { return ~~a; }, [](P a, P, P) { return a; }},
    {"excluded middle", [](P a, P, P) { return a | ~a; }, [](P, P, P) { return dense(); }},
    {"contradiction", [](P a, P, P) { return a & ~a; }, [](P, P, P) { return ~dense(); }},
    {"neutral and", [](P a, P, P) { return a & dense(); }, [](P a, P, P) { return a; }},
    {"neutral or", [](P a, P, P) { return a | ~dense(); }, [](P a, P, P) { return a; }},
};

// Both sides attend to the same pairs, by definition and as drawn.
TEST(PatternLaws, OperatorsObeyTheLawsOfSets) {
  Random random(7);
  const Shape shape{.q_len = 11, .k_len = 13};
  const Rect rect = {{2, 13}, {0, 13}};
  for (const SetLaw& law : kSetLaws) {
    for (int i = 0; i < 40; ++i) {
      const Pattern a = build(draw_pattern(random, shape), shape);
      const Pattern b = build(draw_pattern(random, shape), shape);
      const Pattern c = build(draw_pattern(random, shape), shape);
      const Truth left(law.left(a, b, c).for_head(shape).node(), rect.q, rect.k);
      const Truth right(law.right(a, b, c).for_head(shape).node(), rect.q, rect.k);
      EXPECT_EQ(left.bitmap(rect), right.bitmap(rect))
          << law.name << ": " << a << " ; " << b << " ; " << c;
      EXPECT_EQ(wrong_drawing(left, rect), "") << law.name;
      EXPECT_EQ(wrong_strip(left, rect, 1), "") << law.name;
    }
  }
}

}  // namespace
}  // namespace keyhole::test
