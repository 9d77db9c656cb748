// src/kernels/sm80/index_loss_pairs.cuh
// The pairs of an index loss on tensor cores: the loss, or the gradients of its scores. A CTA
// follows the keys of a query of a group, a block of them after another (index_loss_walk.h):
//
//   tiles of the attention     weights of the block's keys, over heads
//   tiles of the indexer       scores
//   the end of a block         a thread a key: sums of the loss; or the gradient of the score. Then
//                              the products of the indexer, which registers still hold, become
//                              gradients of q . k, in 16 bits, and are added up to dw
//
// Several CTAs share a row if there are few: each has a part of the keys, and the sums of the parts
// are added up by a later launch.
#pragma once

#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/loss_sums.cuh"
#include "kernels/device/math.cuh"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_products.cuh"
#include "kernels/mma/kept_weights.cuh"
#include "kernels/sm80/index_loss_launch.h"
#include "kernels/sm80/index_loss_tiles.cuh"

namespace keyhole::sm80 {

using device::LossSums;

// The tile that is multiplied, those that are on their way, and the next one.
inline constexpr int kLossTiles = 4;

// Which part of a row's keys a CTA has. The rows with the most keys, which are often the last
// queries, come first.
struct LossWork {
  int32_t unit, segment;
  int64_t index, row, query;  // query: -1 if there is none
  int32_t count, first_block, end_block;

  static __device__ __forceinline__ LossWork mine(const LossPairs& p) {
    LossWork work;
    const uint32_t segments = uint32_t(p.parts.segments), units = uint32_t(p.loss.units);
    const uint32_t place = blockIdx.x / segments;
    work.segment = int32_t(blockIdx.x - place * segments);
    work.unit = int32_t(place % units);
    work.index = p.loss.num_rows - 1 - int64_t{place / units};
    work.row = work.unit * p.loss.num_rows + work.index;
    work.query = device::query_at(p.loss, work.index);
    work.count = p.lists.counts[work.row];
    const int32_t blocks = (work.count + kLossKeys - 1) / kLossKeys;
    const int32_t each = (blocks + int32_t(segments) - 1) / int32_t(segments);
    work.first_block = min(work.segment * each, blocks);
    work.end_block = min(work.first_block + each, blocks);
    return work;
  }
};

template <class S>
struct LossShared {
  // Of the keys of a block, by the warps that have heads of them.
  float scores[S::head_warps][kLossKeys], weights[S::head_warps][kLossKeys];
  alignas(8) float d_scores[kLossKeys];
  float dw[S::key_warps][S::heads];
  int32_t keys[2][kLossKeys];  // of two blocks
  // Of a few tiles in turn. One thread looks ahead, so that no other has to remember where it is.
  LossTile tiles[kLossTiles];
};

// This lane's four heads of a tile have rows b, half: 16 b + 8 half + lane / 4 of its warp.
template <class S>
__device__ __forceinline__ int32_t head_of(const WarpPart<S>& part, int b, int half) {
  return part.first_head + 16 * b + 8 * half + int32_t(threadIdx.x % 32) / 4;
}

// The weights of the attention, of this lane's two keys, summed over the heads of a tile.
template <class S, Bend kBend>
__device__ __forceinline__ float2 sum_of_weights(const RuleNumbers<float>& numbers,
                                                 const LossProducts<S>& products,
                                                 const WarpPart<S>& part, const float* lse2,
                                                 int32_t count) {
  const SoftmaxRule<device::CarefulMath, kBend> rule = {numbers};
  float sums[S::eights][2] = {};
#pragma unroll
  for (int b = 0; b < 2; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t head = head_of(part, b, half);
      const float statistic = head < count ? lse2[head] : INFINITY;  // no weight
#pragma unroll
      for (int n = 0; n < S::eights; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float score = rule.score(rule.bend(products[b][n][2 * half + i]));
          sums[n][i] += rule.weight(score, statistic);
        }
      }
    }
  }
  return sum_over_lanes(sums);
}

// The same for scores. w is 0 for heads that are not there.
template <class S>
__device__ __forceinline__ float2 sum_of_scores(const LossProducts<S>& products,
                                                const WarpPart<S>& part, const float* w,
                                                int32_t count) {
  float sums[S::eights][2] = {};
#pragma unroll
  for (int b = 0; b < 2; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t head = head_of(part, b, half);
      const float own = head < count ? w[head] : 0;
#pragma unroll
      for (int n = 0; n < S::eights; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float product = products[b][n][2 * half + i];  // relu of NaN is NaN
          sums[n][i] = fmaf(product < 0 ? 0.f : product, own, sums[n][i]);
        }
      }
    }
  }
  return sum_over_lanes(sums);
}

template <class S>
__device__ __forceinline__ void leave_sums(float (&to)[S::head_warps][kLossKeys],
                                           const WarpPart<S>& part, const float2& sums) {
  if (!is_first_owner<S::eights>()) return;
  const int32_t lane = int32_t(threadIdx.x % 32);
  const int32_t key = part.first_key + 8 * own_eight<S::eights>() + 2 * (lane % 4);
  float* const mine = to[part.first_head / kWarpHeads] + key;
  mine[0] = sums.x, mine[1] = sums.y;
}

// Of the thread's key of a block, over all heads.
template <class S>
__device__ __forceinline__ float sum_over_warps(const float (&of)[S::head_warps][kLossKeys]) {
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < S::head_warps; ++warp) sum += of[warp][threadIdx.x];
  return sum;
}

// Gradients of q . k from those of scores, of the products of the indexer's heads, for a later
// launch; and this lane's share of dw. to: of the first tile of 16 heads, at the block's first key.
template <class T, class S>
__device__ __forceinline__ void keep_gradients(const LossPairs& p, const LossProducts<S>& products,
                                               const WarpPart<S>& part, const float* w,
                                               const float* d_scores, char* to, int32_t places,
                                               float (&dw)[2][2]) {
  const int32_t lane = int32_t(threadIdx.x % 32);
#pragma unroll
  for (int b = 0; b < 2; ++b) {
    const int32_t tile = part.first_head / device::kPairRows + b;
    if (tile >= p.row_tiles) continue;
    float own_w[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t head = head_of(part, b, half);
      own_w[half] = head < p.heads.heads ? w[head] : 0;
    }
    char* const of_tile = to + tile * p.lists.room * device::kPairBytes;
#pragma unroll
    for (int n = 0; n < S::eights; n += 2) {
      float gradients[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float* const mine = d_scores + part.first_key + 8 * (n + j) + 2 * (lane % 4);
        const float2 ds = *reinterpret_cast<const float2*>(mine);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float product = products[b][n + j][e], slope = e % 2 == 0 ? ds.x : ds.y;
          const bool is_positive = product > 0;
          gradients[j][e] = is_positive ? slope * own_w[e / 2] : 0;
          if (is_positive) dw[b][e / 2] = fmaf(slope, product, dw[b][e / 2]);
        }
      }
      const int32_t first = part.first_key + 8 * n;
      if (first >= places) continue;
      uint32_t packed[4];
      mma::pack_weights<T>(packed, gradients);
      mma::keep_weights(of_tile + int64_t{first} * device::kPairBytes, places - first, packed);
    }
  }
}

// The sums of a row, or of a part of it: over the keys of all threads.
__device__ inline void store_sums(const LossPairs& p, const LossWork& work, LossSums* sums,
                                  const LossSums& own) {
  const int32_t thread = int32_t(threadIdx.x);
  __syncthreads();  // the memory of `sums` is free
  if (thread < kLossKeys) sums[thread] = own;
  for (int32_t half = kLossKeys / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) sums[thread].add(sums[thread + half]);
  }
  if (thread != 0) return;
  if (p.parts.segments == 1) {
    device::store_loss(p.loss, work.unit, work.query, sums[0]);
  } else {
    auto* const parts = static_cast<LossSums*>(p.parts.sums);
    parts[work.row * p.parts.segments + work.segment] = sums[0];
  }
}

template <class S>
__device__ __forceinline__ void store_dw(const LossPairs& p, const LossWork& work,
                                         LossShared<S>& shared, const WarpPart<S>& part,
                                         float (&dw)[2][2]) {
#pragma unroll
  for (int b = 0; b < 2; ++b) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& sum = dw[b][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (threadIdx.x % 4 != 0) continue;
      shared.dw[part.first_key / S::warp_keys][head_of(part, b, half)] = sum;
    }
  }
  __syncthreads();
  const int32_t head = int32_t(threadIdx.x);
  if (head >= p.heads.heads || p.dw.data == nullptr) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < S::key_warps; ++warp) sum += shared.dw[warp][head];
  if (p.parts.segments == 1) {
    const int32_t batch = work.unit / p.loss.groups, group = work.unit % p.loss.groups;
    *p.dw.row<float>(batch, group * p.heads.heads + head, work.query) = sum;
  } else {
    p.parts.dw[(work.row * p.parts.segments + work.segment) * p.heads.heads + head] = sum;
  }
}

template <class T, class S, LossResult kResult>
__global__ void __launch_bounds__(S::threads, 2)
    index_loss_pairs(const __grid_constant__ LossPairs p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ LossShared<S> shared;
  const LossWork work = LossWork::mine(p);
  if (work.query < 0) return;
  const int32_t batch = work.unit / p.loss.groups, group = work.unit % p.loss.groups;
  const LossMemory& layout = p.memory;
  const uint32_t kept = mma::smem_address(memory), stages = kept + uint32_t(layout.kept_bytes);
  float* const lse2 =
      reinterpret_cast<float*>(memory + layout.kept_bytes + layout.stages * layout.stage_bytes);
  float* const w = lse2 + p.heads.target_heads;
  for (int32_t head = int32_t(threadIdx.x); head < p.heads.target_heads; head += S::threads) {
    const int32_t at = group * p.heads.target_heads + head;
    lse2[head] = device::kLog2E * *p.loss.target_lse.at.row<const float>(batch, at, work.query);
  }
  for (int32_t head = int32_t(threadIdx.x); head < p.heads.heads; head += S::threads) {
    const int32_t at = group * p.heads.heads + head;
    w[head] = p.loss.w.data == nullptr ? 1.f : *p.loss.w.row<const float>(batch, at, work.query);
  }

  const int32_t* const list = p.lists.keys + work.row * p.lists.room;
  const LossCopies<T, S> copies = {p, batch, group, work.count, work.query};
  const int32_t thread = int32_t(threadIdx.x);
  // The keys of a block, for copies from the second barrier on.
  const auto list_keys = [&](int32_t block) {
    const int32_t place = block * kLossKeys + thread;
    if (thread >= kLossKeys) return;
    const bool is_there = place < work.count;
    mma::copy_4_bytes_or_zeros(mma::smem_address(&shared.keys[block % 2][thread]),
                               is_there ? list + place : list, is_there);
  };
  const auto copy_next = [&](int32_t number, int stage) {
    const LossTile& tile = shared.tiles[number % kLossTiles];
    if (tile.block < work.end_block) {
      const uint32_t to = stages + uint32_t(stage * layout.stage_bytes);
      copies.copy_keys(to, tile, mma::smem_address(shared.keys[tile.block % 2]));
      if (layout.kept_bytes == 0) copies.copy_heads(to + S::keys_bytes, tile, S::heads);
      const bool begins_block = tile.place == 0;
      if (begins_block) list_keys(tile.block + 1);
    }
    mma::commit_copies();
  };
  if (thread == 0) {
    LossTile tile = first_tile(p.heads, S::heads, group, work.first_block);
    for (int i = 0; i + 1 < kLossTiles; ++i) {
      shared.tiles[i] = tile;
      tile = next_tile(tile, p.heads, S::heads, group);
    }
  }
  list_keys(work.first_block);
  if (layout.kept_bytes > 0) {
    for (LossTile tile = first_tile(p.heads, S::heads, group, 0); tile.block == 0;
         tile = next_tile(tile, p.heads, S::heads, group)) {
      copies.copy_heads(kept + uint32_t(tile.place * S::row_bytes), tile,
                        in_whole_warps(tile.count));
    }
  }
  mma::commit_copies();
  mma::await_copies<0>();
  __syncthreads();
  for (int stage = 0; stage + 1 < layout.stages; ++stage) copy_next(stage, stage);

  const WarpPart<S> part = WarpPart<S>::mine();
  LossProducts<S> products = {};
  float2 scores = {0, 0}, weights = {0, 0};  // of this lane's keys
  LossSums sums = LossSums::none();          // of a thread's key of each block
  float dw[2][2] = {};
  float lse = 0, total = 0, dloss = 0;
  if constexpr (kResult == LossResult::gradients) {
    const float* const stats = p.loss.stats.row<const float>(batch, group, work.query);
    lse = stats[0], total = stats[1];
    dloss = *p.dloss.row<const float>(batch, group, work.query);
  }
  int stage = 0;
#pragma unroll 1
  for (int32_t number = 0;; ++number) {
    if (layout.stages == 3) {
      mma::await_copies<1>();
    } else {
      mma::await_copies<0>();
    }
    __syncthreads();  // the tile is there, and nobody reads the one before it any more
    const LossTile& tile = shared.tiles[number % kLossTiles];
    if (tile.block >= work.end_block) break;
    copy_next(number + layout.stages - 1, stage == 0 ? layout.stages - 1 : stage - 1);
    if (thread == 0) {
      shared.tiles[(number + kLossTiles - 1) % kLossTiles] =
          next_tile(shared.tiles[(number + kLossTiles - 2) % kLossTiles], p.heads, S::heads, group);
    }
    const bool has_heads = part.first_head < tile.count;  // of the warp
    if (has_heads) {
      const uint32_t keys = stages + uint32_t(stage * layout.stage_bytes);
      const uint32_t heads =
          layout.kept_bytes > 0 ? kept + uint32_t(tile.place * S::row_bytes) : keys + S::keys_bytes;
      add_tile<T, S>(products, part, heads, keys);
    }
    if (++stage == layout.stages) stage = 0;
    if (!tile.ends_heads(p.heads)) continue;

    if (has_heads && tile.is_index) {
      const float2 more = sum_of_scores<S>(products, part, w + tile.head, tile.count);
      scores.x += more.x, scores.y += more.y;
    } else if (has_heads) {
      const float* const statistics = lse2 + tile.head;
      const float2 more =
          p.loss.rule.inner == 0
              ? sum_of_weights<S, Bend::none>(p.loss.rule, products, part, statistics, tile.count)
              : sum_of_weights<S, Bend::softcap>(p.loss.rule, products, part, statistics,
                                                 tile.count);
      weights.x += more.x, weights.y += more.y;
    }
    if (tile.ends_block(p.heads)) {
      leave_sums<S>(shared.scores, part, scores);
      leave_sums<S>(shared.weights, part, weights);
      scores = weights = {0, 0};
      __syncthreads();
      const int32_t first = tile.block * kLossKeys, places = work.count - first;
      if (thread < kLossKeys) {
        const bool is_there = thread < places;
        float scale = 1;
        if (is_there && p.loss.k_scale.data != nullptr) {
          scale = *p.loss.k_scale.row<const float>(batch, group, list[first + thread]);
        }
        const float score = sum_over_warps<S>(shared.scores) * scale;
        const float weight = sum_over_warps<S>(shared.weights);
        if constexpr (kResult == LossResult::loss) {
          if (is_there) sums.add(score, weight);
        } else {
          // Rows without weights have no keys here: the loss is 0 whatever the scores are.
          const float slope = dloss * scale * (expf(score - lse) - weight / total);
          shared.d_scores[thread] = is_there ? slope : 0;
        }
      }
      if constexpr (kResult == LossResult::gradients) {
        __syncthreads();
        if (has_heads) {
          char* const to =
              p.d_scores + (work.row * p.row_tiles * p.lists.room + first) * device::kPairBytes;
          keep_gradients<T, S>(p, products, part, w, shared.d_scores, to, places, dw);
        }
      }
    }
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int n = 0; n < S::eights; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) products[b][n][e] = 0;
      }
    }
  }
  mma::await_copies<0>();
  if constexpr (kResult == LossResult::loss) {
    store_sums(p, work, reinterpret_cast<LossSums*>(memory), sums);
  } else {
    store_dw<S>(p, work, shared, part, dw);
  }
}

template <DType kType, int kHeads, LossResult kResult>
void launch_index_loss_pairs(const LossPairs& params, cudaStream_t stream) {
  using T = device::Storage<kType>;
  using S = LossShape<kHeads>;
  static_assert(sizeof(LossShared<S>) <= kLossStaticBytes);
  const int64_t ctas = int64_t{params.loss.units} * params.loss.num_rows * params.parts.segments;
  if (ctas == 0) return;
  const auto kernel = index_loss_pairs<T, S, kResult>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  params.memory.bytes),
             "reserving shared memory for the index loss");
  kernel<<<unsigned(narrow(ctas, "index_loss: CTAs")), S::threads, size_t(params.memory.bytes),
           stream>>>(params);
  check_cuda(cudaGetLastError(), "launching the pairs of an index loss");
}

}  // namespace keyhole::sm80
