// tests/support/case_test.cpp
// The harness itself: a seed means one case, a case is its line, every catalog pattern is drawn,
// and the moats and canaries notice a single wrong byte.
#include "support/case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "pattern/catalog.h"
#include "support/case_tensors.h"
#include "support/generator.h"
#include "support/skips.h"

namespace keyhole::test {
namespace {

TEST(Case, ReadsBackWhatItPrints) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    const Case c = draw_case(seed);
    EXPECT_EQ(parse_case(to_text(c)), c) << to_text(c);
  }
}

TEST(Case, ASeedMeansTheSameCaseForEver) {
  // Written down so that a change of the generator is a decision: old ledgers then speak of others.
  EXPECT_EQ(Random(0).next(), 0xe220a8397b1dcdafu);
  EXPECT_EQ(draw_case(1), draw_case(1));
  EXPECT_FALSE(draw_case(1) == draw_case(2));
}

TEST(Case, AnyDrawIsMadeWithoutThoseBeforeIt) {
  Random random(12345);
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(Random::at(12345, i).next(), random.next());
}

void collect(const Expression& e, std::set<std::string>& names) {
  names.insert(e.name);
  for (const Expression& child : e.children) collect(child, names);
}

TEST(Generator, DrawsCasesThatTensorCoresTake) {
  const int cases = 2000;
  int taken = 0;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    const Case c = draw_gpu_case(seed);
    EXPECT_EQ(draw_gpu_case(seed), c);
    EXPECT_NE(c.dtype, DType::f64);
    const auto is_shifted = [](Layout layout) {
      return layout == Layout::padded || layout == Layout::odd_offset;
    };
    taken += c.head_dim % 8 == 0 && c.v_head_dim % 8 == 0 &&
             std::none_of(c.layouts.begin(), c.layouts.end(), is_shifted);
  }
  EXPECT_GT(taken, cases * 7 / 10);
  EXPECT_LT(taken, cases * 9 / 10);  // and others
}

TEST(Skips, AddUpByReason) {
  Skips all, more;
  all.add("too long, by 5");
  all.add("too long, by 7");
  more.add("too short", 3);
  more.add("too long");
  all.add(more);
  EXPECT_EQ(all.total(), 6);
  EXPECT_EQ(all.text(), ": 3 too long, 3 too short");
  for (char letter = 'a'; letter <= 'z'; ++letter) all.add(std::string(200, letter));
  EXPECT_EQ(all.total(), 32);
  EXPECT_NE(all.text().find("other reasons"), std::string::npos);
  EXPECT_EQ(Skips().text(), "");
}

TEST(Generator, DrawsEveryCatalogPatternOperatorLayoutAndRegime) {
  std::set<std::string> names;
  std::set<Layout> layouts;
  std::set<Regime> regimes;
  int q_longer = 0, single_query = 0, empty = 0;
  const int cases = 4000;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    const Case c = draw_case(seed);
    collect(c.pattern, names);
    layouts.insert(c.layouts.begin(), c.layouts.end());
    regimes.insert(c.regime);
    q_longer += c.q_len > c.k_len;
    single_query += c.q_len == 1;
    empty += c.q_len == 0 || c.k_len == 0;
  }
  for (const CatalogEntry& entry : catalog()) {
    EXPECT_TRUE(names.count(std::string(entry.name))) << entry.name << " was never drawn";
  }
  for (const char* name : {"and", "or", "not", "csr", "mask", "tiles", "lambda"}) {
    EXPECT_TRUE(names.count(name)) << name << " was never drawn";
  }
  EXPECT_EQ(layouts.size(), size_t(kNumLayouts));
  EXPECT_EQ(regimes.size(), size_t(kNumRegimes));
  EXPECT_GE(q_longer, cases / 10);
  EXPECT_GE(single_query, cases / 50);
  EXPECT_GE(empty, cases / 50);
}

TEST(Poison, EveryLayoutKeepsItsElementsAndNoticesDamage) {
  for (int i = 0; i < kNumLayouts; ++i) {
    for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64}) {
      PoisonedTensor out(place(dtype, {2, 1, 3, 5}, Layout(i)), /*is_output=*/true);
      out.fill([](int64_t e) { return double(e); });
      const bool shares = Layout(i) == Layout::expanded_batch;
      for (int64_t e = 0; e < out.num_elements(); ++e) {
        EXPECT_EQ(out.get(e), shares ? e % 15 + 15 : e) << to_string(Layout(i));
      }
      EXPECT_EQ(out.damage(), "");
      auto* bytes = static_cast<uint8_t*>(out.view().data);
      for (const int64_t where : {int64_t{-1}, int64_t{-4000}}) {
        const uint8_t before = bytes[where];
        bytes[where] ^= 1;
        EXPECT_NE(out.damage(), "") << to_string(Layout(i));
        bytes[where] = before;
      }
      PoisonedTensor in(place(dtype, {2, 1, 3, 5}, Layout(i)), /*is_output=*/false);
      in.fill([](int64_t e) { return double(e); });
      in.seal();
      EXPECT_EQ(in.damage(), "");
      static_cast<uint8_t*>(in.view().data)[0] ^= 1;
      EXPECT_NE(in.damage(), "");
    }
  }
}

TEST(Poison, WhatIsNotAnElementIsNan) {
  const PoisonedTensor in(place(DType::f16, {1, 2, 3, 4}, Layout::padded), false);
  const auto* halves = static_cast<const uint16_t*>(in.view().data);
  for (int64_t i = -1000; i < 0; ++i) EXPECT_GT(halves[i] & 0x7fff, 0x7c00);
  const PoisonedTensor wide(place(DType::f64, {1, 2, 3, 4}, Layout::contiguous), true);
  EXPECT_TRUE(std::isnan(wide.get(0)));  // unwritten outputs are NaN, so they cannot pass for 0
}

}  // namespace
}  // namespace keyhole::test
