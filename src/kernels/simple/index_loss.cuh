// src/kernels/simple/index_loss.cuh
// What both directions of the index loss share. A CTA has one row: a query of a group. It takes the
// listed keys 64 at a time, and multiplies them with up to 32 heads at a time:
//
//                 16 threads, keys 16 apart
//   8 x 16      +--------------------------+
//   threads,    |  a thread has 4 heads x  |   q and k pass through shared memory,
//   4 heads     |  4 keys in registers     |   32 columns at a time
//   each        +--------------------------+
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/device/cta_sum.cuh"
#include "kernels/device/index_loss_params.h"
#include "kernels/device/loss_sums.cuh"
#include "kernels/device/math.cuh"
#include "kernels/device/rows.cuh"

namespace keyhole::simple {

using device::AnyTensor, device::IndexLossParams, device::LossSums, device::value_of;

inline constexpr int32_t kLossThreads = 128, kOwn = 4;
inline constexpr int32_t kKeys = 64, kHeads = 32, kColumns = 32;
inline constexpr int32_t kCtas = 4;  // of a processor, at least: 128 registers a thread
inline constexpr int32_t kHeadThreads = kHeads / kOwn;
static_assert(kHeadThreads * kKeys / kOwn == kLossThreads);

__device__ inline int32_t thread() { return int32_t(threadIdx.x); }
__device__ inline int32_t own_head() { return thread() / 16 * kOwn; }  // and the next three
__device__ inline int32_t own_key(int32_t i) { return thread() % 16 + 16 * i; }

// Calls visit with a null pointer to the type that holds a dtype.
template <class Visit>
__device__ void with_elements(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::f32:
      return visit(static_cast<const float*>(nullptr));
    case DType::f16:
      return visit(static_cast<const __half*>(nullptr));
    case DType::bf16:
      return visit(static_cast<const __nv_bfloat16*>(nullptr));
    case DType::e4m3:
      return visit(static_cast<const __nv_fp8_e4m3*>(nullptr));
    case DType::f64:  // of a target alone
      return visit(static_cast<const double*>(nullptr));
  }
}
__device__ inline float number_at(const AnyTensor& tensor, int64_t offset) {
  float x = 0;
  with_elements(tensor.dtype, [&]<class Element>(const Element*) {
    x = value_of(static_cast<const Element*>(tensor.at.data)[offset]);
  });
  return x;
}

// Four neighbours of a row, of which `left` are there (0 or less: none; the others are 0).
struct Four {
  int64_t offset;
  int32_t left;
};
// Calls store(i, float4) for this thread's i of all i < kCount; four_at(i) says which. All are
// loaded before the first is stored.
template <int32_t kCount, class FourAt, class Store>
__device__ void copy_fours(const AnyTensor& from, FourAt four_at, Store store) {
  constexpr int32_t kFours = kCount / kLossThreads;
  static_assert(kFours * kLossThreads == kCount);
  float4 fours[kFours];
  with_elements(from.dtype, [&]<class Element>(const Element*) {
#pragma unroll
    for (int32_t i = 0; i < kFours; ++i) {
      const Four four = four_at(thread() + i * kLossThreads);
      const Element* const at = static_cast<const Element*>(from.at.data) + four.offset;
      fours[i] = from.in_fours ? device::load_four<true>(at, four.left)
                               : device::load_four<false>(at, four.left);
    }
  });
#pragma unroll
  for (int32_t i = 0; i < kFours; ++i) store(thread() + i * kLossThreads, fours[i]);
}

// Where a row of a tensor begins.
struct RowPlace {
  int64_t offset;
  bool is_there = true;
};

// Columns of rows in shared memory, column by column, so that neighbouring threads read
// neighbouring rows.
template <int32_t kRows>
struct Columns {
  float at[kColumns][kRows + 1];

  // Zeros beyond `num_rows` and `cols`, and in rows that are not there. row_at(row): where it is.
  template <class RowAt>
  __device__ void load(const AnyTensor& from, int32_t num_rows, int32_t first, int32_t cols,
                       RowAt row_at) {
    constexpr int32_t kPerRow = kColumns / 4;
    copy_fours<kRows * kPerRow>(
        from,
        [&](int32_t i) {
          const int32_t row = i / kPerRow, col = first + i % kPerRow * 4;
          const RowPlace place = row < num_rows ? row_at(row) : RowPlace{0, false};
          return place.is_there ? Four{place.offset + col, cols - col} : Four{0, 0};
        },
        [&](int32_t i, const float4& x) {
          const int32_t row = i / kPerRow, col = i % kPerRow * 4;
          at[col][row] = x.x, at[col + 1][row] = x.y;
          at[col + 2][row] = x.z, at[col + 3][row] = x.w;
        });
  }
};

// A row, and up to 64 of its keys. They are numbered in ascending order: `place` is the first's.
struct Row {
  int32_t unit, batch, group;
  int64_t index;  // among the rows at hand
  int64_t query;  // -1: `picked` names no query
};
struct KeyTile {
  const uint16_t* steps;  // [count] from `base`
  int64_t base, place;
  int32_t count;
  __device__ int64_t key(int32_t i) const { return base + steps[i]; }
};

__device__ inline Row row_at(const IndexLossParams& p, int64_t index, int32_t unit) {
  return {unit, unit / p.groups, unit % p.groups, index, device::query_at(p, index)};
}
// Of a launch with `ctas_per_row` for each. The last queries first: they often have the most keys.
__device__ inline Row row_of_cta(const IndexLossParams& p, int32_t ctas_per_row = 1) {
  const int64_t cta = blockIdx.x / ctas_per_row;
  return row_at(p, p.num_rows - 1 - cta % p.num_rows, int32_t(cta / p.num_rows));
}

// Walks over the keys of a row, in shared memory.
struct KeyWalk {
  uint16_t steps[32 * kLossThreads];
  device::CtaSum<kLossThreads> sum;

  // Calls visit(tile) for all keys. keys_before: null, or written: how many keys of the row come
  // before each word of bits. All threads call; they have passed a barrier when visit is called.
  template <class Visit>
  __device__ void for_each_tile(const IndexLossParams& p, const Row& row, int32_t* keys_before,
                                Visit visit) {
    const uint32_t* const bits = p.listed.row(row.unit, row.index);
    int64_t place = 0;
    for (int64_t first = 0; first < p.listed.words; first += kLossThreads) {
      const int64_t word = first + thread();
      uint32_t left = word < p.listed.words ? bits[word] : 0;
      const auto sums = sum.scan(uint32_t(__popc(left)));
      if (keys_before != nullptr && word < p.listed.words) {
        keys_before[word] = int32_t(place + sums.before);
      }
      for (uint32_t at = sums.before; left != 0; left &= left - 1) {
        steps[at++] = uint16_t(32 * thread() + __ffs(int(left)) - 1);
      }
      __syncthreads();
      for (uint32_t i = 0; i < sums.all; i += kKeys) {
        visit(KeyTile{steps + i, 32 * first, place + i, min(kKeys, int32_t(sums.all - i))});
      }
      place += sums.all;
    }
  }
};

// A key of each entry of a tile: the entry itself, or one of those that it stands for.
class KeysOfTile {
 public:
  __device__ explicit KeysOfTile(const KeyTile& entries) : entries_(entries) {}
  __device__ KeysOfTile(const IndexLossParams& p, const Row& row, const KeyTile& entries,
                        int64_t of_entry)
      : entries_(entries), per_entry_(p.keys_per_entry), of_entry_(of_entry), k_len_(p.k_len) {
    if (p.listed_keys.is_given()) listed_ = p.listed_keys.row(row.unit, row.index);
  }
  __device__ int32_t count() const { return entries_.count; }
  __device__ int64_t key(int32_t i) const { return entries_.key(i) * per_entry_ + of_entry_; }
  __device__ bool is_listed(int32_t i) const {
    if (listed_ == nullptr) return true;
    if (i >= entries_.count || key(i) >= k_len_) return false;
    return (listed_[key(i) / 32] >> (key(i) % 32) & 1) != 0;
  }

 private:
  const KeyTile& entries_;
  int64_t per_entry_ = 1, of_entry_ = 0, k_len_ = 0;
  const uint32_t* listed_ = nullptr;  // a bit per key; null: all are
};

// Scores and target weights of a row and a tile of its keys.
class PairTile {
 public:
  struct Pair {
    float score, scale, weight;  // scale: the k_scale in the score
  };

  // Of key thread() of the tile, in the first kKeys threads; zeros past the last key. Calls
  // visit(first head in the group, products), [own head][own key], for each tile of index heads;
  // products with heads past the last are 0. All threads call.
  template <class Visit>
  __device__ Pair compute(const IndexLossParams& p, const Row& row, const KeyTile& keys,
                          Visit visit) {
    float scores[kOwn] = {}, weights[kOwn] = {}, products[kOwn][kOwn];
    for (int32_t first = 0; first < p.heads; first += kHeads) {
      const int32_t head = row.group * p.heads + first, count = min(kHeads, p.heads - first);
      multiply(p.q, p.k, p.head_dim, row, head, count, row.group, KeysOfTile(keys), products);
#pragma unroll
      for (int32_t h = 0; h < kOwn; ++h) {
        const bool has_weight = p.w.data != nullptr && own_head() + h < count;
        const float w =
            has_weight ? *p.w.row<const float>(row.batch, head + own_head() + h, row.query) : 1.f;
#pragma unroll
        for (int32_t i = 0; i < kOwn; ++i) {
          const float product = products[h][i];  // relu of NaN is NaN
          scores[i] = fmaf(product < 0 ? 0.f : product, w, scores[i]);
        }
      }
      visit(first, products);
    }
    const int32_t begin = row.group * p.target_heads, end = begin + p.target_heads;
    for (int32_t head = begin; head < end;) {  // neighbours that share a kv head
      const int32_t kv_head = head / p.heads_per_key;
      const int32_t count = min(min(end, (kv_head + 1) * p.heads_per_key) - head, kHeads);
      for (int64_t of_entry = 0; of_entry < p.keys_per_entry; ++of_entry) {
        const KeysOfTile some(p, row, keys, of_entry);
        multiply(p.target_q, p.target_k, p.target_dim, row, head, count, kv_head, some, products);
        add_weights(p, row, head, count, some, products, weights);
      }
      head += count;
    }
    const float score = over_heads(scores), weight = over_heads(weights);
    if (thread() >= keys.count) return {0, 1, 0};
    const float scale = p.k_scale.data == nullptr
                            ? 1.f
                            : *p.k_scale.row<const float>(row.batch, row.group, keys.key(thread()));
    return {score * scale, scale, weight};
  }

 private:
  // `count` heads of q from `head` on, and the keys of one head of k.
  __device__ void multiply(const AnyTensor& q, const AnyTensor& k, int32_t cols, const Row& row,
                           int32_t head, int32_t count, int32_t k_head, const KeysOfTile& keys,
                           float (&products)[kOwn][kOwn]) {
#pragma unroll
    for (int32_t i = 0; i < kOwn * kOwn; ++i) products[i / kOwn][i % kOwn] = 0;
    for (int32_t first = 0; first < cols; first += kColumns) {
      __syncthreads();
      q_.load(q, count, first, cols,
              [&](int32_t i) { return RowPlace{q.offset(row.batch, head + i, row.query)}; });
      k_.load(k, keys.count(), first, cols, [&](int32_t i) {
        return RowPlace{k.offset(row.batch, k_head, keys.key(i)), keys.is_listed(i)};
      });
      __syncthreads();
      if (own_head() >= count) continue;
#pragma unroll 4
      for (int32_t col = 0; col < kColumns; ++col) {
#pragma unroll
        for (int32_t h = 0; h < kOwn; ++h) {
#pragma unroll
          for (int32_t i = 0; i < kOwn; ++i) {
            products[h][i] =
                fmaf(q_.at[col][own_head() + h], k_.at[col][own_key(i)], products[h][i]);
          }
        }
      }
    }
  }

  __device__ void add_weights(const IndexLossParams& p, const Row& row, int32_t head, int32_t count,
                              const KeysOfTile& keys, const float (&products)[kOwn][kOwn],
                              float (&weights)[kOwn]) {
    const SoftmaxRule<device::CarefulMath> rule = {p.rule};
#pragma unroll
    for (int32_t h = 0; h < kOwn; ++h) {
      if (own_head() + h >= count) continue;
      const AnyTensor& lse = p.target_lse;
      const float lse2 =
          device::kLog2E * number_at(lse, lse.offset(row.batch, head + own_head() + h, row.query));
#pragma unroll
      for (int32_t i = 0; i < kOwn; ++i) {
        const float weight = rule.weight(rule.score(rule.bend(products[h][i])), lse2);
        if (keys.is_listed(own_key(i))) weights[i] += weight;
      }
    }
  }

  // The sum over all threads that have a key; key thread() in the first kKeys threads.
  __device__ float over_heads(const float (&values)[kOwn]) {
    __syncthreads();
#pragma unroll
    for (int32_t i = 0; i < kOwn; ++i) sums_[own_head() / kOwn][own_key(i)] = values[i];
    __syncthreads();
    float sum = 0;
    if (thread() < kKeys) {
      for (int32_t i = 0; i < kHeadThreads; ++i) sum += sums_[i][thread()];
    }
    return sum;
  }

  Columns<kHeads> q_;
  Columns<kKeys> k_;
  float sums_[kHeadThreads][kKeys];
};

}  // namespace keyhole::simple
