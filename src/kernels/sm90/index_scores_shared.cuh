// src/kernels/sm90/index_scores_shared.cuh
// The pipeline of index_scores. A CTA has the index heads of some queries, 256 rows in all, as the
// columns of its products; they stay in shared memory. Tiles of 64 keys pass by:
//
//   producer warp   copies q once, then k tile by tile into a ring of stages
//   2 warpgroups    take tiles in turn: keys x 256 columns, as two products of 128 columns. While
//   one
//                   is multiplied, the other is weighted and summed over heads
//
//                   columns of a product: query 0 (head 0, 1, ...), query 1, ...
#pragma once

#include "kernels/sm90/ptx.cuh"
#include "kernels/sm90/stages.cuh"

namespace keyhole::sm90 {

inline constexpr int kIndexKeys = 64, kIndexColumns = 256, kIndexThreads = 3 * kWarpgroup;
inline constexpr int kIndexProducerRegisters = 24, kIndexConsumerRegisters = 240;
static_assert(
    kIndexProducerRegisters + 2 * kIndexConsumerRegisters <= 3 * 168,
    "a CTA of 384 threads is given 168 registers a thread; asking for more waits for ever");
inline constexpr int kIndexPanelColumns = 128;  // bytes
// Tiles of a CTA, of which it knows whether they are visible.
inline constexpr int kIndexMostTiles = 65536;

// kHeads: of a query, with padding: 16, 32 or 64. kPanels: of 128 bytes, for head_dim.
template <class T, int kHeads_, int kPanels_>
struct IndexConfig {
  static constexpr int kHeads = kHeads_, kPanels = kPanels_;
  static constexpr int kQueries = kIndexColumns / kHeads;
  static constexpr int kHalfQueries = kQueries / 2;  // of a product
  static constexpr int kStages = kPanels == 1 ? 8 : 6;
  static constexpr int kPanelElements = kIndexPanelColumns / int(sizeof(T));
  static constexpr int kQBytes = kPanels * kIndexColumns * kIndexPanelColumns;
  static constexpr int kKBytes = kPanels * kIndexKeys * kIndexPanelColumns;
  static_assert(kHalfQueries >= 2, "four lanes share two queries and two rows");
};

template <class C>
struct IndexShared {
  alignas(1024) unsigned char q[C::kQBytes];
  alignas(1024) unsigned char k[C::kStages][C::kKBytes];
  alignas(8) uint64_t q_full;
  uint64_t k_full[C::kStages], k_empty[C::kStages];
  Waits waits;
  // A bit per tile of the CTA: some pair is visible; all pairs are.
  uint32_t visible_tiles[kIndexMostTiles / 32], full_tiles[kIndexMostTiles / 32];

  __device__ void init() {
    init_barrier(q_full, 1);
    for (int i = 0; i < C::kStages; ++i) {
      init_barrier(k_full[i], 1);
      init_barrier(k_empty[i], kWarpgroup / 32);
    }
    waits = {};
    publish_barriers();
  }
};

// The work of a CTA: some queries of a group, and a stretch of its key tiles.
struct IndexWork {
  int32_t batch, group;
  int64_t query;  // the first, counted from IndexScoreParams::first_query
  int32_t first_tile, num_tiles;
};

// The visible tiles of a CTA, in order; number i goes to stage i % kStages and to warpgroup i % 2.
class TileCursor {
 public:
  __device__ TileCursor(const uint32_t* visible, int32_t num_tiles)
      : visible_(visible), num_tiles_(num_tiles), word_(num_tiles > 0 ? visible[0] : 0) {
    find();
  }
  __device__ bool is_valid() const { return tile_ < num_tiles_; }
  __device__ int32_t tile() const { return tile_; }
  __device__ void next() {
    word_ &= word_ - 1;
    find();
  }

 private:
  __device__ void find() {
    for (; word_ == 0; word_ = visible_[first_ / 32]) {
      first_ += 32;
      if (first_ >= num_tiles_) {
        tile_ = num_tiles_;
        return;
      }
    }
    tile_ = first_ + __ffs(int(word_)) - 1;
  }

  const uint32_t* visible_;
  int32_t num_tiles_, tile_ = 0, first_ = 0;
  uint32_t word_;
};

}  // namespace keyhole::sm90
