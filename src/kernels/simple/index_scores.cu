// src/kernels/simple/index_scores.cu
// The scores of 64 queries and 64 entries by a CTA. A thread has 4 x 4 of them: neighbouring
// queries, and entries 16 apart. Head by head, q and k pass through shared memory, 16 columns at a
// time.
#include "base/int_math.h"
#include "kernels/device/index_scores.h"
#include "kernels/device/launch.h"
#include "kernels/device/rows.cuh"
#include "kernels/device/storage.h"
#include "kernels/simple/index_scores.h"

namespace keyhole::simple {
namespace {

using device::IndexScoreParams, device::value_of;

constexpr int32_t kTile = 64, kOwn = 4, kColumns = 16, kScoreThreads = 256;

// relu of NaN is NaN.
__device__ float relu(float x) { return x < 0 ? 0.f : x; }

struct Tile {
  int32_t batch, group;
  int64_t query, entry;  // the first
};

// Columns of 64 rows in shared memory, column by column, so that neighbouring threads read
// neighbouring rows.
struct Columns {
  float at[kColumns][kTile + 1];

  template <class Storage, class RowOf>
  __device__ void load(int64_t num_rows, int32_t first, int32_t cols, RowOf row_of) {
    for (int32_t i = int32_t(threadIdx.x); i < kTile * kColumns; i += kScoreThreads) {
      const int32_t row = i / kColumns, col = i % kColumns;
      const bool is_there = row < num_rows && first + col < cols;
      at[col][row] = is_there ? value_of(static_cast<const Storage*>(row_of(row))[first + col]) : 0;
    }
  }
};

// The products of one head.
template <class Storage>
__device__ void multiply(const IndexScoreParams& p, const Tile& tile, int32_t head, Columns& q,
                         Columns& k, float (&products)[kOwn][kOwn]) {
  const int32_t own_query = int32_t(threadIdx.x / 16) * kOwn, own_entry = int32_t(threadIdx.x % 16);
  for (int32_t first = 0; first < p.head_dim; first += kColumns) {
    __syncthreads();
    q.load<Storage>(p.num_queries - tile.query, first, p.head_dim, [&](int32_t row) {
      return p.q.row<const Storage>(tile.batch, head, p.first_query + tile.query + row);
    });
    k.load<Storage>(p.entries - tile.entry, first, p.head_dim, [&](int32_t row) {
      return p.k.row<const Storage>(tile.batch, tile.group, tile.entry + row);
    });
    __syncthreads();
    for (int32_t col = 0; col < kColumns; ++col) {
#pragma unroll
      for (int32_t i = 0; i < kOwn; ++i) {
#pragma unroll
        for (int32_t j = 0; j < kOwn; ++j) {
          products[i][j] =
              fmaf(q.at[col][own_query + i], k.at[col][own_entry + 16 * j], products[i][j]);
        }
      }
    }
  }
}

__device__ bool is_visible(const IndexScoreParams& p, const Tile& tile, int64_t query,
                           int64_t entry) {
  if (!p.visible.is_given()) return true;
  const uint32_t* const row = p.visible.row(int64_t{tile.batch} * p.groups + tile.group, query);
  return (row[entry / 32] >> (entry % 32) & 1) != 0;
}

// Whether some pair of the tile is visible. All threads call.
__device__ bool is_any_visible(const IndexScoreParams& p, const Tile& tile) {
  if (!p.visible.is_given()) return true;
  const int64_t query = tile.query + threadIdx.x / 4, word = tile.entry / 32 + threadIdx.x % 4;
  const bool is_there = query < p.num_queries && threadIdx.x % 4 < 2 && word < p.visible.words;
  const int64_t head = int64_t{tile.batch} * p.groups + tile.group;
  return __syncthreads_or(is_there && p.visible.row(head, query)[word] != 0) != 0;
}

__device__ void store(const IndexScoreParams& p, const Tile& tile,
                      const float (&scores)[kOwn][kOwn]) {
#pragma unroll
  for (int32_t i = 0; i < kOwn; ++i) {
#pragma unroll
    for (int32_t j = 0; j < kOwn; ++j) {
      const int64_t query = tile.query + threadIdx.x / 16 * kOwn + i;
      const int64_t entry = tile.entry + threadIdx.x % 16 + 16 * j;
      if (query >= p.num_queries || entry >= p.entries) continue;
      float* const to = p.scores.row<float>(tile.batch, tile.group, query) + entry;
      if (is_visible(p, tile, query, entry)) {
        const float scale = p.k_scale.data == nullptr
                                ? 1.f
                                : *p.k_scale.row<const float>(tile.batch, tile.group, entry);
        *to = scores[i][j] * scale;
      } else if (!p.only_visible) {
        *to = -INFINITY;
      }
    }
  }
}

template <class Storage>
__global__ void __launch_bounds__(kScoreThreads)
    index_scores(const __grid_constant__ IndexScoreParams p, int64_t q_tiles, int64_t entry_tiles) {
  __shared__ Columns q, k;
  const int64_t unit = blockIdx.x / (q_tiles * entry_tiles);
  const int64_t rest = blockIdx.x - unit * q_tiles * entry_tiles;
  const Tile tile = {int32_t(unit / p.groups), int32_t(unit % p.groups), rest / entry_tiles * kTile,
                     rest % entry_tiles * kTile};
  float scores[kOwn][kOwn] = {};
  if (is_any_visible(p, tile)) {
    for (int32_t j = 0; j < p.heads; ++j) {
      const int32_t head = p.head_of(tile.group, j);
      float products[kOwn][kOwn] = {};
      multiply<Storage>(p, tile, head, q, k, products);
#pragma unroll
      for (int32_t i = 0; i < kOwn; ++i) {
        const int64_t query = tile.query + threadIdx.x / 16 * kOwn + i;
        const bool has_weight = p.w.data != nullptr && query < p.num_queries;
        const float weight =
            has_weight ? *p.w.row<const float>(tile.batch, head, p.first_query + query) : 1.f;
#pragma unroll
        for (int32_t e = 0; e < kOwn; ++e)
          scores[i][e] = fmaf(relu(products[i][e]), weight, scores[i][e]);
      }
    }
  } else if (p.only_visible) {
    return;
  }
  store(p, tile, scores);
}

}  // namespace

template <DType kType>
void run_index_scores(const ScoreArgs& args) {
  const IndexScoreParams p = device::index_score_params(args);
  const int64_t q_tiles = ceil_div(p.num_queries, int64_t{kTile});
  const int64_t entry_tiles = ceil_div(p.entries, int64_t{kTile});
  const int64_t ctas =
      checked_mul(int64_t{p.batch} * p.groups,
                  checked_mul(q_tiles, entry_tiles, "index_scores: tiles"), "index_scores: tiles");
  if (ctas == 0) return;
  device::launch("index scores", index_scores<device::Storage<kType>>,
                 {unsigned(narrow(ctas, "index_scores: CTAs")), kScoreThreads, 0},
                 static_cast<cudaStream_t>(args.launch.stream), p, q_tiles, entry_tiles);
}

template void run_index_scores<DType::f32>(const ScoreArgs& args);
template void run_index_scores<DType::f16>(const ScoreArgs& args);
template void run_index_scores<DType::bf16>(const ScoreArgs& args);
template void run_index_scores<DType::e4m3>(const ScoreArgs& args);

}  // namespace keyhole::simple
