// src/kernels/sm80/index_loss_walk.h
// The products of an index loss, one after another. A tile of them is some heads of a row (a query
// of a group) by a block of its keys, over 64 columns of both: first all heads of the attention,
// then those of the indexer, for one block of keys after another.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KEYHOLE_LOSS_WALK __host__ __device__ __forceinline__
#else
#define KEYHOLE_LOSS_WALK inline
#endif

namespace keyhole::sm80 {

inline constexpr int32_t kLossColumns = 64;  // of a tile
inline constexpr int32_t kLossKeys = 128;    // of a block
inline constexpr int32_t kWarpHeads = 32;    // of a warp

// The heads of a group. Neighbouring heads of the attention share a kv head.
struct LossHeads {
  int32_t heads = 0, head_dim = 0;
  int32_t target_heads = 0, target_dim = 0, heads_per_key = 1;
};

struct LossTile {
  int32_t block;
  int32_t head, count;  // the first in the group, and how many
  int32_t col;
  int32_t place;  // heads of the tiles before it in this block, in whole warps: where its own are
  bool is_index;

  KEYHOLE_LOSS_WALK int32_t cols(const LossHeads& of) const {
    return is_index ? of.head_dim : of.target_dim;
  }
  KEYHOLE_LOSS_WALK int32_t kv_head(const LossHeads& of, int32_t group) const {
    return (group * of.target_heads + head) / of.heads_per_key;  // of a tile of the attention
  }
  // The products of these heads are complete with this tile.
  KEYHOLE_LOSS_WALK bool ends_heads(const LossHeads& of) const {
    return col + kLossColumns >= cols(of);
  }
  KEYHOLE_LOSS_WALK bool ends_block(const LossHeads& of) const {
    return is_index && ends_heads(of) && head + count >= of.heads;
  }
};

KEYHOLE_LOSS_WALK int32_t in_whole_warps(int32_t heads) {
  return (heads + kWarpHeads - 1) / kWarpHeads * kWarpHeads;
}

// most_heads: of a tile.
KEYHOLE_LOSS_WALK int32_t heads_of_tile(const LossTile& tile, const LossHeads& of,
                                        int32_t most_heads, int32_t group) {
  int32_t end = tile.is_index ? of.heads : of.target_heads;
  if (!tile.is_index) {
    const int32_t shared =
        (tile.kv_head(of, group) + 1) * of.heads_per_key - group * of.target_heads;
    end = shared < end ? shared : end;
  }
  return end - tile.head < most_heads ? end - tile.head : most_heads;
}
KEYHOLE_LOSS_WALK LossTile first_tile(const LossHeads& of, int32_t most_heads, int32_t group,
                                      int32_t block) {
  LossTile tile = {block, 0, 0, 0, 0, false};
  tile.count = heads_of_tile(tile, of, most_heads, group);
  return tile;
}
KEYHOLE_LOSS_WALK LossTile next_tile(LossTile tile, const LossHeads& of, int32_t most_heads,
                                     int32_t group) {
  tile.place += in_whole_warps(tile.count);
  tile.col += kLossColumns;
  if (tile.col < tile.cols(of)) return tile;
  tile.col = 0;
  tile.head += tile.count;
  if (tile.head >= (tile.is_index ? of.heads : of.target_heads)) {
    tile.head = 0;
    if (tile.is_index) tile.place = 0, ++tile.block;
    tile.is_index = !tile.is_index;
  }
  tile.count = heads_of_tile(tile, of, most_heads, group);
  return tile;
}

// Places of heads that a group needs if all its tiles are kept.
inline int64_t places_of_heads(const LossHeads& of, int32_t most_heads, int32_t group) {
  int64_t places = 0;
  for (LossTile tile = first_tile(of, most_heads, group, 0); tile.block == 0;
       tile = next_tile(tile, of, most_heads, group)) {
    places = int64_t{tile.place} + in_whole_warps(tile.count);
  }
  return places;
}

}  // namespace keyhole::sm80
