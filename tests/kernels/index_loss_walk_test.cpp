// tests/kernels/index_loss_walk_test.cpp
// The tiles of an index loss on tensor cores, worked out without a GPU: every head meets every
// column of every block of keys once, in an order in which its products are complete when they are
// used; and what they take of shared memory is there.
#include "kernels/sm80/index_loss_walk.h"

#include <gtest/gtest.h>

#include <set>

#include "kernels/sm80/index_loss_config.h"

namespace keyhole::sm80 {
namespace {

constexpr LossHeads kHeads[] = {
    {.heads = 1, .head_dim = 8, .target_heads = 1, .target_dim = 8, .heads_per_key = 1},
    {.heads = 64, .head_dim = 128, .target_heads = 128, .target_dim = 576, .heads_per_key = 128},
    {.heads = 33, .head_dim = 64, .target_heads = 40, .target_dim = 72, .heads_per_key = 10},
    {.heads = 4, .head_dim = 136, .target_heads = 6, .target_dim = 64, .heads_per_key = 24},
    {.heads = 300, .head_dim = 40, .target_heads = 520, .target_dim = 200, .heads_per_key = 260},
};

TEST(IndexLossWalk, EveryHeadMeetsEveryColumnOfEveryBlockOnce) {
  for (const LossHeads& of : kHeads) {
    for (const int32_t most : {kFewHeads, kManyHeads}) {
      for (const int32_t group : {0, 3}) {
        LossTile tile = first_tile(of, most, group, /*block=*/2);
        for (int32_t block = 2; block < 4; ++block) {
          std::set<std::pair<int32_t, int32_t>> met[2];  // head, column; of attention and indexer
          std::set<int32_t> places;
          bool ends = false;
          while (tile.block == block) {
            EXPECT_FALSE(ends);
            EXPECT_GE(tile.count, 1);
            EXPECT_LE(tile.count, most);
            EXPECT_EQ(tile.place % kWarpHeads, 0);
            EXPECT_TRUE(!tile.is_index || met[0].size() == size_t(of.target_heads * of.target_dim))
                << "the heads of the attention come first";
            for (int32_t h = tile.head; h < tile.head + tile.count; ++h) {
              for (int32_t x = 0; x < kLossColumns && tile.col + x < tile.cols(of); ++x) {
                EXPECT_TRUE(met[tile.is_index].insert({h, tile.col + x}).second);
              }
              if (tile.is_index) continue;
              EXPECT_EQ((group * of.target_heads + h) / of.heads_per_key, tile.kv_head(of, group));
            }
            for (int32_t h = 0; h < in_whole_warps(tile.count); ++h) {
              EXPECT_TRUE(places.insert(tile.place + h).second) << "two tiles in one place";
            }
            EXPECT_EQ(tile.ends_heads(of),
                      met[tile.is_index].contains({tile.head, tile.cols(of) - 1}));
            ends = tile.ends_block(of);
            tile = next_tile(tile, of, most, group);
          }
          EXPECT_TRUE(ends);
          EXPECT_EQ(met[0].size(), size_t(of.target_heads * of.target_dim));
          EXPECT_EQ(met[1].size(), size_t(of.heads * of.head_dim));
          EXPECT_EQ(places_of_heads(of, most, group), int64_t(places.size()));
          EXPECT_EQ(*places.rbegin(), int32_t(places.size()) - 1);
        }
      }
    }
  }
}

template <class S>
void expect_memory_to_fit(const LossHeads& of) {
  for (const int64_t kib : {99, 163, 227}) {
    const LossMemory memory = loss_memory<S>(of, /*groups=*/4, kib * 1024);
    EXPECT_LE(memory.bytes, kib * 1024 - kLossStaticBytes) << kib;
    EXPECT_GE(memory.stages, 2);
    const int32_t heads = memory.kept_bytes == 0 ? S::heads_bytes : 0;
    EXPECT_EQ(memory.stage_bytes, S::keys_bytes + heads);
    EXPECT_EQ(memory.bytes, memory.kept_bytes + memory.stages * memory.stage_bytes +
                                4 * (of.heads + of.target_heads));
    for (int32_t group = 0; group < 4 && memory.kept_bytes > 0; ++group) {
      EXPECT_LE(places_of_heads(of, S::heads, group) * S::row_bytes, memory.kept_bytes);
    }
  }
}

TEST(IndexLossWalk, StagesFitSharedMemory) {
  for (const LossHeads& of : kHeads) {
    expect_memory_to_fit<LossShape<kFewHeads>>(of);
    expect_memory_to_fit<LossShape<kManyHeads>>(of);
  }
  expect_memory_to_fit<LossShape<kManyHeads>>({.heads = 128,
                                               .head_dim = 256,
                                               .target_heads = kMostLossHeads - 128,
                                               .target_dim = 576,
                                               .heads_per_key = kMostLossHeads - 128});
  // DeepSeek's heads stay in the shared memory of an H200.
  EXPECT_GT(loss_memory<LossShape<kManyHeads>>(kHeads[1], 1, 227 * 1024).kept_bytes, 0);
}

}  // namespace
}  // namespace keyhole::sm80
