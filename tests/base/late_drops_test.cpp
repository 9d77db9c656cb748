// tests/base/late_drops_test.cpp
// Objects that are handed over are destroyed by the one that drops them, and by no other thread.
#include "base/late_drops.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace keyhole {
namespace {

// Says where it was destroyed.
struct Noticed {
  std::atomic<int>* wrong;
  std::atomic<int>* destroyed;
  std::thread::id where;
  ~Noticed() {
    ++*destroyed;
    if (std::this_thread::get_id() != where) ++*wrong;
  }
};

TEST(LateDrops, NothingGoesBeforeItIsDropped) {
  LateDrops drops;
  EXPECT_TRUE(drops.is_empty());
  std::weak_ptr<int> watched;
  {
    const auto object = std::make_shared<int>(1);
    watched = object;
    drops.hand_over(object);
    drops.hand_over(object);  // held once
    EXPECT_EQ(object.use_count(), 2);
  }
  EXPECT_FALSE(drops.is_empty());
  EXPECT_FALSE(watched.expired());
  drops.drop_all();
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(drops.is_empty());
  drops.drop_all();
}

TEST(LateDrops, WhatSomebodyHoldsStays) {
  LateDrops drops;
  const auto object = std::make_shared<int>(1);
  drops.hand_over(object);
  drops.drop_all();
  EXPECT_EQ(object.use_count(), 1);
}

TEST(LateDrops, ThreadsThatHandOverDestroyNothing) {
  LateDrops drops;
  std::atomic<int> wrong = 0, destroyed = 0, running = 4;
  constexpr int kObjects = 500;
  std::vector<std::shared_ptr<void>> objects;
  for (int i = 0; i < kObjects; ++i) {
    objects.push_back(
        std::shared_ptr<void>(new Noticed{&wrong, &destroyed, std::this_thread::get_id()},
                              [](void* object) { delete static_cast<Noticed*>(object); }));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    // Each has an owner of every object: who is last does not know it.
    threads.emplace_back([&drops, &running, mine = objects]() mutable {
      for (auto& object : mine) drops.hand_over(std::move(object));
      --running;
    });
  }
  objects.clear();
  while (running > 0) drops.drop_all();
  for (std::thread& thread : threads) thread.join();
  drops.drop_all();
  EXPECT_EQ(destroyed, kObjects);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace keyhole
