// tests/select/fuzz_test.cpp
// Random selections against the definitions. A failure is made smaller before it is shown.
#include <gtest/gtest.h>

#include <functional>

#include "base/random.h"
#include "support/scale.h"
#include "support/select_checks.h"

#if KEYHOLE_HAVE_RAPIDCHECK
#include <rapidcheck/gtest.h>
#endif

namespace keyhole::test {
namespace {

using Check = std::string (*)(const SelectCase& c);

SelectCase draw_case(uint64_t seed) {
  Random random(seed);
  const auto pattern = [&] {
    return pattern_or_none(
        random.pick<std::string>({"", "", "causal", "window(4)", "window(30, 20)", "dilated(3)",
                                  "causal & dilated(2)", "random(5, 1, 3)", "sinks(2)|window(3)",
                                  "causal | dilated(6)", "blocks(17)", "~causal", "~dense"}));
  };
  return {.batch = random.between(0, 2) == 0 ? 2 : 1,
          .groups = random.between(1, 3),
          .heads = random.between(1, 6),
          .q_len = random.pick<int64_t>({1, 2, 17, 70}),
          .entries = random.pick<int64_t>({1, 5, 63, 64, 65, 130, 300}),
          .head_dim = random.pick<int64_t>({1, 8, 33, 64}),
          .k = random.pick<int64_t>({1, 2, 9, 64, 200}),
          .dtype = random.pick({DType::f32, DType::f16, DType::bf16, DType::f64}),
          .has_w = random.chance(70),
          .has_scale = random.chance(40),
          .has_counts = random.chance(70),
          .visible = pattern(),
          .always = pattern(),
          .one_plan_for_all = random.chance(60),
          .layout = random.pick({Layout::contiguous, Layout::bshd, Layout::padded, Layout::sliced,
                                 Layout::odd_offset}),
          .kind = ScoreKind(random.below(kNumScoreKinds)),
          .extra_columns = random.chance(30) ? random.between(1, 70) : 0,
          .threads = int(random.between(0, 3)),
          .seed = random.next()};
}

// Smaller cases, one step away.
std::vector<SelectCase> smaller(const SelectCase& c) {
  std::vector<SelectCase> found;
  const auto add = [&](auto change) {
    SelectCase other = c;
    change(other);
    if (to_text(other) != to_text(c)) found.push_back(other);
  };
  add([](SelectCase& x) { x.visible.reset(); });
  add([](SelectCase& x) { x.always.reset(); });
  add([](SelectCase& x) { x.layout = Layout::contiguous; });
  add([](SelectCase& x) { x.has_w = x.has_scale = false; });
  add([](SelectCase& x) { x.extra_columns = 0; });
  add([](SelectCase& x) { x.threads = 1; });
  add([](SelectCase& x) { x.dtype = DType::f32; });
  for (int64_t SelectCase::* size :
       {&SelectCase::batch, &SelectCase::groups, &SelectCase::heads, &SelectCase::q_len,
        &SelectCase::entries, &SelectCase::head_dim, &SelectCase::k}) {
    add([&](SelectCase& x) { x.*size = std::max<int64_t>(1, x.*size / 2); });
    add([&](SelectCase& x) { x.*size = std::max<int64_t>(1, x.*size - 1); });
  }
  return found;
}

SelectCase shrink(SelectCase c, Check check) {
  for (int attempts = 0; attempts < 500;) {
    bool is_smaller = false;
    for (const SelectCase& other : smaller(c)) {
      ++attempts;
      if (check(other).empty()) continue;
      c = other;
      is_smaller = true;
      break;
    }
    if (!is_smaller) break;
  }
  return c;
}

void fuzz(Check check, int64_t cases, uint64_t first_seed) {
  for (int64_t i = 0; i < scaled(cases); ++i) {
    const SelectCase c = draw_case(first_seed + uint64_t(i));
    if (check(c).empty()) continue;
    const SelectCase small = shrink(c, check);
    FAIL() << "seed " << first_seed + uint64_t(i) << ": " << check(small) << "\n" << to_text(small);
  }
}

TEST(SelectFuzz, TopK) { fuzz(check_top_k, 1500, 1000); }
TEST(SelectFuzz, Scores) { fuzz(check_scores, 150, 2000); }
TEST(SelectFuzz, SelectKeys) { fuzz(check_select_keys, 250, 3000); }

// The shrinker finds the smallest case that fails, for a failure of our own.
TEST(SelectFuzz, FailuresAreMadeSmaller) {
  const Check fails = [](const SelectCase& c) -> std::string {
    return c.entries >= 7 && c.k >= 3 ? "too many" : "";
  };
  const SelectCase small = shrink(
      {.batch = 2, .groups = 3, .q_len = 70, .entries = 300, .k = 64, .visible = causal()}, fails);
  EXPECT_EQ(small.entries, 7);
  EXPECT_EQ(small.k, 3);
  EXPECT_EQ(small.batch * small.groups * small.q_len * small.head_dim * small.heads, 1);
  EXPECT_FALSE(small.visible);
}

#if KEYHOLE_HAVE_RAPIDCHECK
// Rows of few different numbers, drawn and shrunk by rapidcheck.
RC_GTEST_PROP(SelectRapidcheck, TopKIsAStableSort, ()) {
  const auto numbers = *rc::gen::container<std::vector<int8_t>>(rc::gen::inRange<int8_t>(-3, 4));
  const int64_t k = *rc::gen::inRange(1, 40);
  std::vector<float> scores(numbers.begin(), numbers.end());
  std::vector<int32_t> indices(static_cast<size_t>(k), 7), want(scores.size());
  const TensorView view(scores.data(), DType::f32, {1, 1, 1, int64_t(scores.size())});
  top_k(view, {.indices = IndexView(indices.data(), {1, 1, 1, k})}, {.k = k});
  std::vector<int32_t> row = reference_top_k(view, k).rows[0];
  row.resize(size_t(k), -1);
  RC_ASSERT(indices == row);
}
#endif

}  // namespace
}  // namespace keyhole::test
