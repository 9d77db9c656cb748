// src/kernels/sm90/index_scores.cuh
// index_scores by wgmma: e4m3, f16 and bf16. index_scores_shared.cuh has the pipeline.
#pragma once

#include <algorithm>

#include "base/check.h"
#include "base/int_math.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/storage.h"
#include "kernels/sm90/index_scores_consumer.cuh"
#include "kernels/sm90/index_scores_launch.h"
#include "kernels/sm90/tensor_maps.h"

namespace keyhole::sm90 {

// How calls are divided among CTAs.
struct IndexGrid {
  int32_t query_blocks, segments, segment_tiles, num_tiles;
};

// The last queries first: under a causal plan they take longest.
template <class C>
__device__ IndexWork index_work(const IndexScoreParams& p, const IndexGrid& grid) {
  const int32_t index = int32_t(gridDim.x - 1 - blockIdx.x);
  const int32_t segment = index % grid.segments, rest = index / grid.segments;
  const int32_t heads = p.batch * p.groups, head = rest % heads, block = rest / heads;
  const int32_t first = segment * grid.segment_tiles;
  return {head / p.groups, head % p.groups, int64_t{block} * C::kQueries, first,
          max(0, min(grid.segment_tiles, grid.num_tiles - first))};
}

// The words of a tile in the rows of a work's queries, ored and anded.
struct TileBits {
  uint32_t any, all;
};
template <class C>
__device__ TileBits bits_of_tile(const IndexScoreParams& p, const IndexWork& work, int num_queries,
                                 int32_t tile) {
  if (tile >= work.num_tiles) return {0, 0};
  if (!p.visible.is_given()) return {~0u, ~0u};
  const int64_t head = int64_t{work.batch} * p.groups + work.group;
  const int64_t word = 2 * (work.first_tile + int64_t{tile});
  TileBits bits = {0, ~0u};
  for (int query = 0; query < num_queries; ++query) {
    // Rows begin at multiples of 16 bytes.
    const auto* row =
        reinterpret_cast<const uint2*>(p.visible.row(head, work.query + query) + word);
    bits.any |= row->x | row->y;
    bits.all &= row->x & row->y;
  }
  return bits;
}

// Finds the tiles in which some pair is visible. Scores of the others are -infinity, if they are
// wanted at all.
template <class C>
__device__ void find_visible_tiles(const IndexScoreParams& p, const IndexWork& work,
                                   IndexShared<C>& shared) {
  const int num_queries = int(min(int64_t{C::kQueries}, p.num_queries - work.query));
  for (int32_t first = 0; first < work.num_tiles; first += kIndexThreads) {
    const int32_t tile = first + int32_t(threadIdx.x);
    const TileBits bits = bits_of_tile<C>(p, work, num_queries, tile);
    const uint32_t visible = __ballot_sync(~0u, bits.any != 0);
    const uint32_t full = __ballot_sync(~0u, bits.all == ~0u);
    if (tile >= work.num_tiles) continue;
    if (threadIdx.x % 32 == 0) {
      shared.visible_tiles[tile / 32] = visible;
      shared.full_tiles[tile / 32] = full;
    }
    if (p.only_visible || bits.any != 0) continue;
    const int64_t key = (work.first_tile + int64_t{tile}) * kIndexKeys;
    const int64_t end = min(key + kIndexKeys, p.entries);
    for (int query = 0; query < num_queries; ++query) {
      float* const row = p.scores.row<float>(work.batch, work.group, work.query + query);
      for (int64_t i = key; i < end; ++i) row[i] = -INFINITY;
    }
  }
}

template <class C>
__device__ void produce(const IndexMaps& maps, const IndexWork& work, int64_t first_query,
                        IndexShared<C>& shared) {
  TileCursor at(shared.visible_tiles, work.num_tiles);
  // Nobody would wait for the queries, and a CTA must not end while a copy into it is under way.
  if (!at.is_valid()) return;
  arrive_and_expect(shared.q_full, C::kQBytes);
#pragma unroll
  for (int panel = 0; panel < C::kPanels; ++panel) {
    copy_box(
        smem_address(shared.q) + uint32_t(panel * kIndexColumns * 128), &maps.q, shared.q_full,
        {panel * C::kPanelElements, 0, work.group, int32_t(first_query + work.query), work.batch});
  }
  PipelineState<C::kStages> k;
  for (; at.is_valid(); at.next()) {
    shared.waits.await(shared.k_empty[k.stage], k.parity ^ 1);
    arrive_and_expect(shared.k_full[k.stage], C::kKBytes);
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
      copy_box(smem_address(shared.k[k.stage]) + uint32_t(panel * kIndexKeys * 128), &maps.k,
               shared.k_full[k.stage],
               {panel * C::kPanelElements, (work.first_tile + at.tile()) * kIndexKeys, work.group,
                work.batch, 0});
    }
    k.next();
  }
}

template <class T, class C>
__global__ void __launch_bounds__(kIndexThreads, 1)
    index_scores(const __grid_constant__ IndexScoreParams p, const __grid_constant__ IndexMaps maps,
                 const __grid_constant__ IndexGrid grid) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<IndexShared<C>*>(memory);
  if (threadIdx.x == 0) shared.init();
  const IndexWork work = index_work<C>(p, grid);
  find_visible_tiles<C>(p, work, shared);
  __syncthreads();

  const int warpgroup = warp_uniform(int(threadIdx.x / kWarpgroup));
  if (warpgroup == 0) {
    shrink_registers<kIndexProducerRegisters>();
    if (threadIdx.x == 0) produce<C>(maps, work, p.first_query, shared);
  } else {
    grow_registers<kIndexConsumerRegisters>();
    IndexConsumer<T, C>(p, work, shared, warpgroup - 1).run();
    shared.waits.end();
  }
}

template <DType kType, class C>
void launch_index_scores(const IndexScoreParams& p, int num_processors, cudaStream_t stream) {
  using T = device::Storage<kType>;
  constexpr int kBytes = sizeof(IndexShared<C>);
  static_assert(kBytes <= kIndexSharedBytes, "does not fit: drop a stage");
  IndexGrid grid{};
  grid.num_tiles = narrow(ceil_div(p.entries, int64_t{kIndexKeys}), "index_scores: tiles");
  grid.query_blocks = narrow(ceil_div(p.num_queries, int64_t{C::kQueries}), "index_scores: blocks");
  const int64_t blocks = int64_t{grid.query_blocks} * p.batch * p.groups;
  if (blocks == 0 || grid.num_tiles == 0) return;
  // Keys are divided, too, so that the last CTAs of a call leave no processor idle for long.
  constexpr int64_t kFewestTiles = 32, kRounds = 16;
  const int64_t fewest = ceil_div(int64_t{grid.num_tiles}, int64_t{kIndexMostTiles});
  const int64_t most = std::max<int64_t>(fewest, grid.num_tiles / kFewestTiles);
  grid.segments = int32_t(std::clamp(ceil_div(kRounds * num_processors, blocks), fewest, most));
  grid.segment_tiles = int32_t(ceil_div(grid.num_tiles, grid.segments));
  static device::OncePerGpu reserve;
  device::reserve_shared_memory(reserve, index_scores<T, C>, kBytes, "sm90.index_scores");
  device::launch("sm90.index_scores", index_scores<T, C>,
                 {unsigned(narrow(blocks * grid.segments, "index_scores: CTAs")), kIndexThreads,
                  size_t{kBytes}},
                 stream, p, index_maps(p, kType, C::kQueries, C::kHeads, kIndexKeys), grid);
}

template <DType kType, int kHeads>
void run_index_scores(const ScoreArgs& args) {
  using T = device::Storage<kType>;
  const IndexScoreParams p = device::index_score_params(args);
  const auto stream = static_cast<cudaStream_t>(args.launch.stream);
  const auto launch = [&]<int kPanels>() {
    using C = IndexConfig<T, kHeads, kPanels>;
    launch_index_scores<kType, C>(p, args.launch.num_processors, stream);
  };
  if constexpr (sizeof(T) > 1) {
    if (p.head_dim * int(sizeof(T)) > kIndexPanelColumns) return launch.template operator()<2>();
  }
  launch.template operator()<1>();
}

}  // namespace keyhole::sm90
