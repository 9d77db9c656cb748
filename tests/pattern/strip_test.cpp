// tests/pattern/strip_test.cpp
// Operators on strips, held against the same operators key by key, on random strips.
#include "pattern/strip.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace keyhole::test {
namespace {

constexpr Span kKeys = {-5, 30};

using ByKey = std::vector<Cover>;  // one for each of kKeys

ByKey by_key(const Strip& strip) {
  ByKey out(size_t(kKeys.size()), Cover::none);
  for (const Segment& segment : strip) {
    for (Position k = segment.begin; k < segment.end; ++k)
      out[size_t(k - kKeys.begin)] = segment.cover;
  }
  return out;
}

Strip random_strip(Random& random) {
  Strip strip;
  Position at = random.between(kKeys.begin, kKeys.begin + 6);
  while (at < kKeys.end) {
    const Position end = std::min(kKeys.end, at + random.between(0, 6));
    strip.append(at, end, random.pick({Cover::none, Cover::some, Cover::all}));
    at = end;
  }
  return strip;
}

// Segments ascend, are not empty, never `none`, and neighbours of one cover are one.
void expect_canonical(const Strip& strip) {
  for (size_t i = 0; i < strip.size(); ++i) {
    EXPECT_LT(strip[i].begin, strip[i].end);
    EXPECT_NE(strip[i].cover, Cover::none);
    if (i == 0) continue;
    EXPECT_LE(strip[i - 1].end, strip[i].begin);
    EXPECT_FALSE(strip[i - 1].end == strip[i].begin && strip[i - 1].cover == strip[i].cover);
  }
}

TEST(Strip, AppendJoinsNeighboursAndDropsNothing) {
  Strip strip;
  strip.append(0, 2, Cover::all);
  strip.append(2, 2, Cover::some);
  strip.append(2, 4, Cover::all);
  strip.append(4, 6, Cover::none);
  strip.append(6, 7, Cover::some);
  ASSERT_EQ(strip.size(), 2u);
  EXPECT_EQ(strip[0], (Segment{0, 4, Cover::all}));
  EXPECT_EQ(strip[1], (Segment{6, 7, Cover::some}));
}

TEST(Strip, OperatorsAreTheOnesOfEachKey) {
  Random random(1);
  for (int i = 0; i < 3000; ++i) {
    const Strip a = random_strip(random), b = random_strip(random);
    const Strip results[] = {both(a, b), either(a, b), joined(a, b), complement(a, kKeys)};
    for (const Strip& result : results) expect_canonical(result);
    const ByKey left = by_key(a), right = by_key(b);
    ByKey wanted[4];
    for (size_t k = 0; k < left.size(); ++k) {
      wanted[0].push_back(left[k] & right[k]);
      wanted[1].push_back(left[k] | right[k]);
      wanted[2].push_back(left[k] == right[k] ? left[k] : Cover::some);
      wanted[3].push_back(~left[k]);
    }
    for (size_t j = 0; j < 4; ++j) ASSERT_EQ(by_key(results[j]), wanted[j]) << "operator " << j;
  }
}

TEST(Strip, ComplementStaysInsideTheKeys) {
  Strip strip;
  strip.append(0, 4, Cover::all);
  strip.append(8, 12, Cover::some);
  const Strip inside = complement(strip, {2, 10});
  ASSERT_EQ(inside.size(), 2u);
  EXPECT_EQ(inside[0], (Segment{4, 8, Cover::all}));
  EXPECT_EQ(inside[1], (Segment{8, 10, Cover::some}));
  EXPECT_TRUE(complement(strip, {3, 3}).empty());
}

TEST(Strip, CoverOfAnyKeys) {
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    const Strip strip = random_strip(random);
    const ByKey covers = by_key(strip);
    for (Position begin = kKeys.begin; begin < kKeys.end; ++begin) {
      bool has_none = false, has_all = false, has_some = false;
      for (Position end = begin + 1; end <= kKeys.end; ++end) {
        const Cover last = covers[size_t(end - 1 - kKeys.begin)];
        has_none |= last == Cover::none;
        has_all |= last == Cover::all;
        has_some |= last == Cover::some;
        const Cover wanted = has_some || (has_none && has_all) ? Cover::some
                             : has_all                         ? Cover::all
                                                               : Cover::none;
        ASSERT_EQ(cover_of(strip, {begin, end}), wanted) << begin << " " << end;
      }
    }
    EXPECT_EQ(cover_of(strip, {3, 3}), Cover::none);
  }
}

}  // namespace
}  // namespace keyhole::test
