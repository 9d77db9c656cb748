// tests/support/shrink_test.cpp
// The shrinker against planted bugs: each is a predicate over cases whose smallest failing case is
// known. Large random cases that trigger it must come down to that size, or one step above.
#include "support/shrink.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/check.h"
#include "support/generator.h"

namespace keyhole::test {
namespace {

bool contains(const Expression& e, const std::string& name) {
  if (e.name == name) return true;
  for (const Expression& child : e.children) {
    if (contains(child, name)) return true;
  }
  return false;
}
int64_t largest_number(const Expression& e) {
  int64_t largest = 0;
  for (const int64_t number : e.numbers) largest = std::max(largest, number);
  for (const Expression& child : e.children) largest = std::max(largest, largest_number(child));
  return largest;
}
// Sum of everything that makes a case large; the known minimum of a bug is given in the same unit.
int64_t size_of(const Case& c) {
  int64_t layouts = 0;
  for (const Layout layout : c.layouts) layouts += layout != Layout::contiguous;
  return count_nodes(c.pattern) - 1 + c.batch - 1 + c.heads - 1 + c.kv_heads - 1 + c.q_len +
         c.k_len + c.head_dim - 1 + c.v_head_dim - 1 + layouts + (c.regime != Regime::normal) +
         (c.softcap != 0) + c.has_sink + c.offset.has_value() + c.scale.has_value() + c.threads +
         (c.normalizer.alpha != 1) + (c.normalizer.top_k != 0) - 1 + (c.tile != 0) +
         (c.forms != 0) + (c.dtype != DType::f32);
}

struct PlantedBug {
  const char* name;
  std::function<bool(const Case&)> fails;
  int64_t smallest;  // size_of the smallest failing case
};

std::vector<PlantedBug> planted_bugs() {
  std::vector<PlantedBug> bugs;
  for (const int64_t edge : {1, 2, 3, 5, 8, 9, 16, 17, 31, 33}) {
    bugs.push_back({"q_len at an edge", [=](const Case& c) { return c.q_len >= edge; }, edge});
    bugs.push_back({"k_len at an edge", [=](const Case& c) { return c.k_len >= edge; }, edge});
  }
  for (const int64_t edge : {2, 7, 13}) {
    bugs.push_back({"both lengths",
                    [=](const Case& c) { return c.q_len >= edge && c.k_len > c.q_len; },
                    2 * edge + 1});
    bugs.push_back({"head_dim", [=](const Case& c) { return c.head_dim > edge; }, edge});
    bugs.push_back({"v_head_dim", [=](const Case& c) { return c.v_head_dim > edge; }, edge});
  }
  for (const char* name : {"and", "or"}) {
    bugs.push_back({name, [=](const Case& c) { return contains(c.pattern, name); }, 2});
  }
  for (const char* name : {"not", "at", "packed"}) {
    bugs.push_back({name, [=](const Case& c) { return contains(c.pattern, name); }, 1});
  }
  for (const char* name :
       {"window", "sinks", "csr", "mask", "tiles", "bitmaps", "lambda", "dilated", "random",
        "documents", "tree", "grid", "neighborhood", "volume", "fixed", "exponential", "bigbird"}) {
    bugs.push_back({name, [=](const Case& c) { return contains(c.pattern, name); }, 0});
  }
  bugs.push_back({"grouped heads", [](const Case& c) { return c.heads > c.kv_heads; }, 1});
  bugs.push_back({"kv heads", [](const Case& c) { return c.kv_heads > 1; }, 2});
  bugs.push_back({"batch", [](const Case& c) { return c.batch > 1; }, 1});
  bugs.push_back({"threads", [](const Case& c) { return c.threads > 2; }, 2});
  bugs.push_back(
      {"softcap and sink", [](const Case& c) { return c.softcap > 0 && c.has_sink; }, 2});
  bugs.push_back(
      {"sliced v", [](const Case& c) { return c.layout(Tensor::v) == Layout::sliced; }, 1});
  bugs.push_back({"spike", [](const Case& c) { return c.regime == Regime::spike; }, 1});
  bugs.push_back(
      {"offset with bf16", [](const Case& c) { return c.offset && c.dtype == DType::bf16; }, 2});
  bugs.push_back(
      {"or in a batch of keys",
       [](const Case& c) { return contains(c.pattern, "or") && c.k_len > 4 && c.batch > 1; }, 8});
  bugs.push_back(
      {"a number above 9", [](const Case& c) { return largest_number(c.pattern) > 9; }, 0});
  return bugs;
}

TEST(Shrink, PlantedBugsComeDownToTheirKnownSize) {
  const auto bugs = planted_bugs();
  ASSERT_GE(bugs.size(), 50u);
  for (const PlantedBug& bug : bugs) {
    int found = 0;
    for (uint64_t seed = 1; seed < 4000 && found < 3; ++seed) {
      const Case c = draw_case(seed);
      if (!bug.fails(c)) continue;
      ++found;
      const auto kind_of = [&](const Case& candidate) -> std::string {
        try {
          build(candidate.pattern, candidate.shape());
        } catch (const Error&) {
          return "";  // not a case at all
        }
        return bug.fails(candidate) ? "planted" : "";
      };
      const Shrunk shrunk = shrink(c, kind_of);
      EXPECT_TRUE(bug.fails(shrunk.smallest)) << bug.name;
      EXPECT_LE(size_of(shrunk.smallest), bug.smallest + 1)
          << bug.name << " seed " << seed << "\n  from " << to_text(c) << "\n  to   "
          << to_text(shrunk.smallest) << " after " << shrunk.attempts << " attempts";
      EXPECT_LE(shrunk.attempts, 2000);
    }
    EXPECT_GE(found, 1) << bug.name << ": no case of the first 4,000 has it";
  }
}

TEST(Shrink, KeepsTheKindOfFailure) {
  Case c = draw_case(7);
  c.q_len = 40, c.k_len = 40;
  const auto kind_of = [](const Case& x) -> std::string {
    return x.q_len >= 20 ? "long" : x.q_len >= 3 ? "short" : "";
  };
  EXPECT_EQ(shrink(c, kind_of).smallest.q_len, 20);
}

TEST(Shrink, StaysInsideItsBudget) {
  Case c = draw_case(3);
  c.q_len = c.k_len = 180;
  int asked = 0;
  const auto kind_of = [&](const Case&) -> std::string { return ++asked, "always"; };
  const Shrunk shrunk = shrink(c, kind_of, {.attempts = 10, .seconds = 60});
  EXPECT_EQ(shrunk.attempts, 10);
  EXPECT_EQ(asked, 11);  // and once for the case itself
}

TEST(Shrink, ACaseThatDoesNotFailIsReturnedAsItIs) {
  const Case c = draw_case(5);
  EXPECT_EQ(shrink(c, [](const Case&) { return ""; }).smallest, c);
}

}  // namespace
}  // namespace keyhole::test
