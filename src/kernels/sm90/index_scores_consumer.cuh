// src/kernels/sm90/index_scores_consumer.cuh
// A consumer warpgroup of index_scores: every other visible tile of the CTA.
#pragma once

#include "kernels/device/index_scores.h"
#include "kernels/sm90/index_scores_shared.cuh"

namespace keyhole::sm90 {

using device::IndexScoreParams;

// relu; NaN stays NaN.
__device__ __forceinline__ float relu_of(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// A score by its definition, for padding that multiplies infinity: zeros of heads that do not exist
// would make it NaN.
template <class T>
__device__ float score_one_by_one(const IndexScoreParams& p, const IndexWork& work, int64_t query,
                                  int64_t key) {
  float score = 0;
  const T* const k = p.k.row<const T>(work.batch, work.group, key);
  for (int32_t j = 0; j < p.heads; ++j) {
    const int32_t head = p.head_of(work.group, j);
    const T* const q = p.q.row<const T>(work.batch, head, p.first_query + query);
    float product = 0;
    for (int32_t x = 0; x < p.head_dim; ++x) product = fmaf(float(q[x]), float(k[x]), product);
    const float weight =
        p.w.data == nullptr ? 1.f : *p.w.row<const float>(work.batch, head, p.first_query + query);
    score = fmaf(relu_of(product), weight, score);
  }
  return score;
}

__device__ __forceinline__ bool is_visible(const IndexScoreParams& p, const IndexWork& work,
                                           int64_t query, int64_t key) {
  if (!p.visible.is_given()) return true;
  const int64_t head = int64_t{work.batch} * p.groups + work.group;
  return (__ldg(p.visible.row(head, query) + key / 32) >> (key % 32) & 1) != 0;
}
__device__ __forceinline__ float scale_of(const IndexScoreParams& p, const IndexWork& work,
                                          int64_t key) {
  if (p.k_scale.data == nullptr) return 1;
  return __ldg(p.k_scale.row<const float>(work.batch, work.group, key));
}

// Zeros of heads that do not exist make NaN of infinity: scores that came out NaN are computed
// again, by the lanes that have stored them. at: the first tile of the warpgroup.
template <class T, class C>
__device__ __noinline__ void redo_nans(const IndexScoreParams& p, const IndexWork& work,
                                       TileCursor at, int own_row, int own_query) {
  for (; at.is_valid(); at.next()) {
    const int64_t key = int64_t{work.first_tile + at.tile()} * kIndexKeys + own_row;
    for (int query = own_query; query < C::kQueries && key < p.entries; query += 2) {
      const int64_t row = work.query + query;
      if (row >= p.num_queries) break;
      float& score = p.scores.row<float>(work.batch, work.group, row)[key];
      if (score == score || !is_visible(p, work, row, key)) continue;
      score = score_one_by_one<T>(p, work, row, key) * scale_of(p, work, key);
    }
    at.next();
    if (!at.is_valid()) break;
  }
}

template <class T, class C>
class IndexConsumer {
  static constexpr int kSums = C::kHalfQueries;  // of a lane, for two rows each
  static constexpr int kOwn = kSums / 2;         // scores of a lane in the end
  static constexpr int kBlocks = C::kHeads / 8;  // of 8 columns, of a query

 public:
  __device__ IndexConsumer(const IndexScoreParams& p, const IndexWork& work, IndexShared<C>& shared,
                           int warpgroup)
      : p_(p),
        work_(work),
        shared_(shared),
        warpgroup_(warpgroup),
        num_queries_(int(min(int64_t{C::kQueries}, p.num_queries - work.query))),
        row_(p.scores.row<float>(work.batch, work.group, work.query + own_query())) {}

  __device__ __forceinline__ void run() {
    TileCursor at(shared_.visible_tiles, work_.num_tiles);
    if (warpgroup_ == 1 && at.is_valid()) skip(at);
    if (!at.is_valid()) return;
    const TileCursor begin = at;
    load_weights();
    shared_.waits.await(shared_.q_full, 0);
    multiply_tiles(at);
    if (p_.heads < C::kHeads && has_nan_) redo_nans<T, C>(p_, work_, begin, own_row(), own_query());
  }

 private:
  static __device__ __forceinline__ int lane() { return int(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return int(threadIdx.x) / 32 % 4; }
  // The row of a tile and the query of a product's half that this lane's scores are for:
  // own_query() + 2 i for score i.
  static __device__ __forceinline__ int own_row() {
    return 16 * warp() + lane() / 4 + 8 * (lane() & 1);
  }
  static __device__ __forceinline__ int own_query() { return lane() >> 1 & 1; }

  // A lane's key of a tile. What is read for it is asked for while products are under way.
  struct Place {
    float* to;  // the score of its first query; null: there is no such key
    float scale;
    uint32_t visible;  // bit i: that of its query i
  };

  // To the next tile, which is the other warpgroup's.
  __device__ __forceinline__ void skip(TileCursor& at) {
    at.next();
    k_.next();
  }

  // While the second half is multiplied, the first is added up; while the second is added up, the
  // other warpgroup has the tensor cores.
  __device__ __forceinline__ void multiply_tiles(TileCursor& at) {
    while (at.is_valid()) {
      float first[64], second[64];
      shared_.waits.await(shared_.k_full[k_.stage], k_.parity);
      begin_products();
      multiply(first, 0);
      multiply(second, 1);
      const Place place = place_in(at.tile());
      await_products<1>();
      is_ready(first);
      store_sums(first, 0, place);
      await_products<0>();
      is_ready(second);
      arrive_as_warp(shared_.k_empty[k_.stage]);  // another warp may still multiply its rows
      store_sums(second, 1, place);
      skip(at);
      if (at.is_valid()) skip(at);
    }
  }

  __device__ __forceinline__ void multiply(float (&sum)[64], int half) {
    const uint64_t keys = operand(smem_address(shared_.k[k_.stage]), 0);
    const uint64_t queries = operand(smem_address(shared_.q) + uint32_t(half * 128 * 128), 0);
#pragma unroll
    for (int panel = 0; panel < C::kPanels; ++panel) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint64_t left = further(keys, panel * kIndexKeys * 128 + step * 32);
        const uint64_t right = further(queries, panel * kIndexColumns * 128 + step * 32);
        if (panel == 0 && step == 0) {
          Product<T>::template of_shared<true, false, false>(sum, left, right);
        } else {
          Product<T>::template of_shared<false, false, false>(sum, left, right);
        }
      }
    }
    commit_products();
  }

  // Of heads or queries that do not exist: 0.
  __device__ __forceinline__ void load_weights() {
    const float* const from =
        p_.w.data == nullptr
            ? nullptr
            : p_.w.row<const float>(work_.batch, p_.head_of(work_.group, lane() % 4 * 2),
                                    p_.first_query + work_.query);
#pragma unroll
    for (int query = 0; query < C::kQueries; ++query) {
#pragma unroll
      for (int i = 0; i < 2 * kBlocks; ++i) {
        const int step = i / 2 * 8 + i % 2;  // in heads, from the lane's first
        const bool is_there =
            lane() % 4 * 2 + step < p_.heads && work_.query + query < p_.num_queries;
        const int64_t offset = step * p_.w.head_stride + query * p_.w.row_stride;
        weight_[query][i] = !is_there ? 0.f : from == nullptr ? 1.f : __ldg(from + offset);
      }
    }
  }

  // Sums over heads: first those of a lane, then those of the four lanes that share two rows, so
  // that each of them ends with one row and every other query.
  __device__ __forceinline__ void store_sums(const float (&product)[64], int half,
                                             const Place& place) {
    float sum[kSums][2];
#pragma unroll
    for (int i = 0; i < 2 * kBlocks; ++i) {
#pragma unroll
      for (int query = 0; query < kSums; ++query) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float of_head = relu_of(product[4 * (query * kBlocks + i / 2) + 2 * row + i % 2]);
          const float weight = weight_[half * kSums + query][i];
          sum[query][row] = i == 0 ? of_head * weight : fmaf(of_head, weight, sum[query][row]);
        }
      }
    }
    float of_row[kSums];
#pragma unroll
    for (int query = 0; query < kSums; ++query) {
      const bool is_second = (lane() & 1) != 0;
      const float given = is_second ? sum[query][0] : sum[query][1];
      const float kept = is_second ? sum[query][1] : sum[query][0];
      of_row[query] = kept + __shfl_xor_sync(~0u, given, 1);
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool is_second = own_query() != 0;
      const float given = is_second ? of_row[2 * i] : of_row[2 * i + 1];
      const float kept = is_second ? of_row[2 * i + 1] : of_row[2 * i];
      const float score = kept + __shfl_xor_sync(~0u, given, 2);
      store(score, half * kOwn + i, place);
    }
  }

  __device__ __forceinline__ Place place_in(int32_t tile) const {
    const int64_t key = int64_t{work_.first_tile + tile} * kIndexKeys + own_row();
    if (key >= p_.entries) return {nullptr, 0, 0};
    Place place = {row_ + key, scale_of(p_, work_, key), ~0u};
    if ((shared_.full_tiles[tile / 32] >> (tile % 32) & 1) == 0) {
      place.visible = 0;
#pragma unroll
      for (int i = 0; i < 2 * kOwn; ++i) {
        const int64_t query = work_.query + own_query() + 2 * i;
        const bool is_there = query < p_.num_queries && is_visible(p_, work_, query, key);
        place.visible |= uint32_t(is_there) << i;
      }
    }
    return place;
  }
  // own: of the lane's queries, which are 2 apart.
  __device__ __forceinline__ void store(float score, int own, const Place& place) {
    if (place.to == nullptr || own_query() + 2 * own >= num_queries_) return;
    const bool is_visible = (place.visible >> own & 1) != 0;
    if (!is_visible && p_.only_visible) return;
    has_nan_ = has_nan_ || !(score == score);
    place.to[2 * own * p_.scores.row_stride] = is_visible ? score * place.scale : -INFINITY;
  }

  const IndexScoreParams& p_;
  const IndexWork& work_;
  IndexShared<C>& shared_;
  const int warpgroup_, num_queries_;
  float* const row_;  // of its first query
  bool has_nan_ = false;
  PipelineState<C::kStages> k_;
  float weight_[C::kQueries][2 * kBlocks];
};

}  // namespace keyhole::sm90
