// tests/base/recent_map_test.cpp
// The bounded cache against its definition: a list of keys by their last use.
#include "base/recent_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/random.h"

namespace keyhole {
namespace {

TEST(RecentMap, TheLeastRecentGoesFirst) {
  RecentMap<int, int> map(2);
  EXPECT_EQ(map.find(1), nullptr);
  EXPECT_FALSE(map.insert(1, 10).has_value());
  EXPECT_FALSE(map.insert(2, 20).has_value());
  ASSERT_NE(map.find(1), nullptr);  // used again: 2 is the older one now
  EXPECT_EQ(map.insert(3, 30), 20);
  EXPECT_EQ(map.find(2), nullptr);
  EXPECT_EQ(*map.find(1), 10);
  EXPECT_EQ(*map.find(3), 30);
  EXPECT_EQ(map.size(), 2u);
  EXPECT_THROW((void)map.insert(3, 31), Error);
  EXPECT_THROW((RecentMap<int, int>(0)), Error);
}

TEST(RecentMap, WhatGoesIsHandedToTheCaller) {
  RecentMap<int, std::shared_ptr<int>> map(1);
  const auto first = std::make_shared<int>(1);
  EXPECT_FALSE(map.insert(1, first).has_value());
  EXPECT_EQ(first.use_count(), 2);
  const auto evicted = map.insert(2, nullptr);
  ASSERT_TRUE(evicted.has_value());
  EXPECT_EQ(*evicted, first);
  EXPECT_EQ(first.use_count(), 2);  // ours and the one handed over, none inside
}

TEST(RecentMap, KeepsTheMostRecentOfAnySequence) {
  constexpr size_t kCapacity = 5;
  Random random(1);
  RecentMap<uint64_t, uint64_t> map(kCapacity);
  std::vector<uint64_t> by_last_use;  // the most recent last
  for (int step = 0; step < 5000; ++step) {
    const uint64_t key = random.next() % 9;
    const auto known = std::ranges::find(by_last_use, key);
    const uint64_t* found = map.find(key);
    ASSERT_EQ(found != nullptr, known != by_last_use.end()) << "step " << step;
    if (found != nullptr) {
      ASSERT_EQ(*found, key * 7);
      by_last_use.erase(known);
    } else {
      const auto evicted = map.insert(key, key * 7);
      ASSERT_EQ(evicted.has_value(), by_last_use.size() == kCapacity);
      if (evicted.has_value()) {
        ASSERT_EQ(*evicted, by_last_use.front() * 7);
        by_last_use.erase(by_last_use.begin());
      }
    }
    by_last_use.push_back(key);
    ASSERT_EQ(map.size(), by_last_use.size());
  }
}

}  // namespace
}  // namespace keyhole
