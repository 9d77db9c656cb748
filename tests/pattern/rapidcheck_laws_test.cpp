// tests/pattern/rapidcheck_laws_test.cpp
// The laws of the algebra once more, on patterns that rapidcheck draws and shrinks: a failure names
// the smallest expression and rectangle it found.
#if KEYHOLE_HAVE_RAPIDCHECK
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "pattern/simplify.h"
#include "pattern/truth.h"

namespace keyhole::test {
namespace {

// A pattern as the text that parse() reads: what rapidcheck shrinks and prints.
struct Expression {
  std::string text;
};
std::ostream& operator<<(std::ostream& stream, const Expression& e) { return stream << e.text; }

rc::Gen<std::string> call(std::string name, std::vector<std::pair<int, int>> ranges) {
  std::vector<rc::Gen<int>> numbers;
  for (const auto& [low, high] : ranges) numbers.push_back(rc::gen::inRange(low, high));
  return rc::gen::exec([name = std::move(name), numbers = std::move(numbers)] {
    std::string text = name;
    for (size_t i = 0; i < numbers.size(); ++i) {
      text += (i == 0 ? "(" : ", ") + std::to_string(*numbers[i]);
    }
    return numbers.empty() ? text : text + ")";
  });
}

rc::Gen<std::string> leaf() {
  return rc::gen::oneOf(
      call("dense", {}), call("causal", {}), call("exponential", {}), call("window", {{0, 9}}),
      call("window", {{0, 9}, {0, 9}}), call("sinks", {{0, 9}}), call("blocks", {{1, 9}}),
      call("prefix", {{0, 9}}), call("global", {{0, 9}}), call("global_at", {{0, 20}, {0, 20}}),
      call("documents", {{0, 12}, {0, 12}, {0, 12}}),
      call("tree", {{-1, 0}, {-1, 1}, {-1, 2}, {-1, 3}}), call("dilated", {{1, 6}}),
      call("dilated", {{1, 6}, {0, 4}}), call("strided", {{1, 7}}), call("fixed", {{5, 9}, {1, 5}}),
      call("random", {{1, 5}, {0, 4}, {0, 99}}), call("grid", {{1, 6}, {1, 6}, {0, 3}, {0, 3}}),
      call("neighborhood", {{1, 6}, {1, 6}, {0, 3}, {0, 3}}),
      call("volume", {{1, 4}, {1, 4}, {1, 4}, {0, 3}, {0, 3}, {0, 3}}),
      call("volume_neighborhood", {{1, 4}, {1, 4}, {1, 4}, {0, 3}, {0, 3}, {0, 3}}),
      call("streaming", {{0, 4}, {1, 6}}));
}

rc::Gen<std::string> expression(int depth) {
  if (depth == 0) return leaf();
  const auto binary = [&](const char* sign) {
    return rc::gen::map(rc::gen::pair(expression(depth - 1), expression(depth - 1)),
                        [sign](const std::pair<std::string, std::string>& sides) {
                          return "(" + sides.first + sign + sides.second + ")";
                        });
  };
  return rc::gen::oneOf(
      leaf(), binary(" & "), binary(" | "),
      rc::gen::map(expression(depth - 1), [](const std::string& inner) { return "~" + inner; }));
}

constexpr int kLength = 20;
const Rect kAll = {{-4, kLength + 4}, {-4, kLength + 4}};

// Of the node: it answers for any position, also where a call of this length would be refused.
Truth truth_of(const Pattern& pattern) {
  const Shape shape{.q_len = kLength, .k_len = kLength};
  return Truth(pattern.node()->resolve({shape}), kAll.q, kAll.k);
}
Pattern any_pattern(int depth = 1) {
  return parse((*rc::gen::map(expression(depth), [](std::string text) {
                 return Expression{std::move(text)};
               })).text);
}
Rect any_rect() {
  const auto span = [](Span within) {
    const auto begin = *rc::gen::inRange<Position>(within.begin, within.end);
    return Span{begin, *rc::gen::inRange<Position>(begin + 1, within.end + 1)};
  };
  return {span(kAll.q), span(kAll.k)};
}
void expect_same(const Pattern& left, const Pattern& right) {
  RC_ASSERT(truth_of(left).bitmap(kAll) == truth_of(right).bitmap(kAll));
}

RC_GTEST_PROP(PatternAlgebra, DeMorgan, ()) {
  const Pattern a = any_pattern(), b = any_pattern();
  expect_same(~(a & b), ~a | ~b);
  expect_same(~(a | b), ~a & ~b);
}

RC_GTEST_PROP(PatternAlgebra, EachOperatorDistributesOverTheOther, ()) {
  const Pattern a = any_pattern(), b = any_pattern(), c = any_pattern();
  expect_same(a & (b | c), (a & b) | (a & c));
  expect_same(a | (b & c), (a | b) & (a | c));
}

RC_GTEST_PROP(PatternAlgebra, Absorption, ()) {
  const Pattern a = any_pattern(), b = any_pattern();
  expect_same(a & (a | b), a);
  expect_same(a | (a & b), a);
}

RC_GTEST_PROP(PatternAlgebra, OrderAndGroupingDoNotMatter, ()) {
  const Pattern a = any_pattern(), b = any_pattern(), c = any_pattern();
  expect_same(a & b & c, c & (b & a));
  expect_same(a | b | c, c | (b | a));
}

RC_GTEST_PROP(PatternAlgebra, SimplifyingChangesNoPair, ()) {
  const Pattern a = any_pattern(3);
  expect_same(a, Pattern(simplify(a.node())));
}

RC_GTEST_PROP(PatternAlgebra, PrintingAndParsingAreInverse, ()) {
  const Pattern a = any_pattern(3);
  RC_ASSERT(parse(a.text()) == a);
  RC_ASSERT(parse(a.text()).text() == a.text());
}

RC_GTEST_PROP(PatternAlgebra, NoAnswerContradictsAllows, ()) {
  const Truth truth = truth_of(any_pattern(3));
  const Rect rect = any_rect();
  RC_ASSERT(wrong_cover(truth, rect) == "");
  RC_ASSERT(wrong_strip(truth, rect, *rc::gen::inRange<Position>(1, 30)) == "");
  RC_ASSERT(wrong_drawing(truth, rect) == "");
}

RC_GTEST_PROP(PatternAlgebra, EqualSignaturesAreEqualBitmaps, ()) {
  const Truth truth = truth_of(any_pattern(2));
  const auto rows = *rc::gen::inRange<Position>(1, 8), columns = *rc::gen::inRange<Position>(1, 8);
  SignatureBook book;
  for (Position q = kAll.q.begin; q + rows <= kAll.q.end; ++q) {
    for (Position k = kAll.k.begin; k + columns <= kAll.k.end; ++k) {
      RC_ASSERT(book.wrong_signature(truth, {{q, q + rows}, {k, k + columns}}) == "");
    }
  }
}

}  // namespace
}  // namespace keyhole::test
#endif
