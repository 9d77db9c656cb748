// src/kernels/device/entmax_backward_keys.cuh
// By the entries of a key: dk and dv. G: how rows are gathered and multiplied (gather_rows.cuh,
// mma/tensor_gather.cuh).
//
// A warp takes one key at a time, or a CTA a chunk of the entries of a busy one. Rows of q and dout
// are gathered by the entries, and dk and dv written once.
#pragma once

#include <algorithm>

#include "kernels/device/entmax_pair.cuh"
#include "kernels/device/gather_rows.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/rank_entries.cuh"

namespace keyhole::device {

constexpr int32_t kKeyWarps = 4;  // per CTA
constexpr int32_t kKeysOfWarp = 4, kKeysOfCta = kKeysOfWarp * kKeyWarps;
// Of a CTA with a chunk of a busy key. GPUs with 99 KiB of shared memory take this too.
template <class G>
constexpr int32_t kBusyWarps = G::kRoomBytes > 12 * 1024 ? 4 : 8;
constexpr int32_t kWidest = 576;  // columns of a row

// Rows of q or dout of the query heads that share a kv head, by the place of an entry without its
// slot.
template <class Storage>
struct RowsOfUnit {
  const Storage* first;
  int64_t head_stride, row_stride;
  int32_t query_bits;
  __device__ __forceinline__ int64_t offset(int32_t row) const {
    const int32_t head = row >> query_bits, query = row & ((1 << query_bits) - 1);
    return head * head_stride + query * row_stride;
  }
  __device__ __forceinline__ const Storage* operator()(int32_t row) const {
    return first + offset(row);
  }
};
template <class Storage>
__device__ __forceinline__ RowsOfUnit<Storage> rows_of_unit(const EntmaxBackwardParams& p,
                                                            const DeviceTensor& tensor,
                                                            int32_t batch, int32_t kv_head) {
  return {tensor.row<const Storage>(batch, kv_head * p.group(), 0), tensor.head_stride,
          tensor.row_stride, p.keys.places.query_bits};
}

// The gradient that a sum is for.
enum class Of : uint8_t { dv, dk };

// Slots of a warp: for rows of dout and for rows of q.
constexpr int32_t kSlotsOfKeys = 2;

// This lane's entry of a batch. entry_at(i): entry i of `count`.
template <class G>
struct EntryBatch {
  KeyEntry entry = {};
  int32_t loads;

  template <class EntryAt>
  __device__ __forceinline__ EntryBatch(uint32_t first, uint32_t count, EntryAt entry_at) {
    const uint32_t i = first + uint32_t(G::place_of_lane());
    if (i < count) entry = entry_at(i);
    loads = G::loads_for(i < count);
  }
  __device__ __forceinline__ float weight(Of of) const {
    return of == Of::dv ? entry.weight : entry.dscore;
  }
  // The row whose weight it is; -1: of a weight of 0, whose row must not be read.
  __device__ __forceinline__ int32_t row(Of of) const {
    return weight(of) != 0 ? int32_t(entry.place >> EntryPlaces::kSlotBits) : -1;
  }
};
template <class G>
__device__ __forceinline__ void start_batch(const G& gather, Of of, const EntryBatch<G>& batch,
                                            const RowsOfUnit<typename G::Storage>& rows,
                                            int32_t cols) {
  gather.start(int32_t(of), rows, cols, batch.row(of), batch.loads);
}
template <class G>
__device__ __forceinline__ void add_batch(const G& gather, Of of, const EntryBatch<G>& batch,
                                          const RowsOfUnit<typename G::Storage>& rows,
                                          int32_t first_column, int32_t cols,
                                          typename G::Columns& sum) {
  gather.add(sum, int32_t(of), rows, first_column, cols, batch.row(of), batch.weight(of),
             batch.loads);
}

// Adds weight * row over `count` entries to `own`, for one chunk of columns.
template <class G, class EntryAt>
__device__ __forceinline__ void sum_entries(const G& gather, Of of, typename G::OwnColumns& own,
                                            const RowsOfUnit<typename G::Storage>& rows,
                                            int32_t first_column, int32_t cols, uint32_t count,
                                            EntryAt entry_at) {
  typename G::Columns sum = {};
  for (uint32_t first = 0; first < count; first += kGatherPlaces) {
    const EntryBatch<G> batch(first, count, entry_at);
    start_batch(gather, of, batch, rows, cols);
    gather.await();
    add_batch(gather, of, batch, rows, first_column, cols, sum);
  }
  G::share(sum, own);
}

// Where dk or dv of a key goes.
struct KeyTarget {
  DeviceTensor to;
  const float* unlisted;  // [cols] sums over rows without a list; null: there are none
  int32_t cols;
};
template <Of kOf>
__device__ __forceinline__ KeyTarget target_of(const EntmaxBackwardParams& p, int64_t unit_and_key,
                                               bool has_unlisted) {
  const int32_t cols = kOf == Of::dv ? p.sizes.v_head_dim : p.sizes.head_dim;
  const float* unlisted = kOf == Of::dv ? p.dv_unlisted : p.dk_unlisted;
  return {kOf == Of::dv ? p.dv : p.dk, has_unlisted ? unlisted + unit_and_key * cols : nullptr,
          cols};
}

// Adds what a key gets of rows without a list, for one chunk of columns.
template <class G, Of kOf>
__device__ __forceinline__ void add_unlisted(const EntmaxBackwardParams& p, const RowBlock& block,
                                             int64_t key, bool has_unlisted, int32_t first,
                                             typename G::OwnColumns& sum) {
  const KeyTarget target = target_of<kOf>(p, block.head_index * p.sizes.k_len + key, has_unlisted);
  if (target.unlisted != nullptr) G::add_sums(target.unlisted, first, target.cols, sum);
}
template <class G, Of kOf>
__device__ __forceinline__ void store_chunk(const EntmaxBackwardParams& p, const RowBlock& block,
                                            int64_t key, int32_t first,
                                            const typename G::OwnColumns& sum) {
  using Storage = typename G::Storage;
  const KeyTarget target = target_of<kOf>(p, 0, false);
  G::store(target.to.row<Storage>(block.batch, block.head, key), first, target.cols, sum);
}

// dk and dv of a key. Rows are one chunk each: all that is read comes at the same time.
template <class G, class EntryAt>
__device__ __forceinline__ void follow_key_at_once(const G& gather, const EntmaxBackwardParams& p,
                                                   const RowBlock& block, int64_t key,
                                                   uint32_t count, bool has_unlisted,
                                                   EntryAt entry_at) {
  using Storage = typename G::Storage;
  const int32_t v_cols = p.sizes.v_head_dim, cols = p.sizes.head_dim;
  typename G::OwnColumns own_dv = {}, own_dk = {};
  if (count > 0) {
    const auto douts = rows_of_unit<Storage>(p, p.dout, block.batch, block.head);
    const auto queries = rows_of_unit<Storage>(p, p.q, block.batch, block.head);
    typename G::Columns dv = {}, dk = {};
    for (uint32_t first = 0; first < count; first += kGatherPlaces) {
      const EntryBatch<G> batch(first, count, entry_at);
      start_batch(gather, Of::dv, batch, douts, v_cols);
      start_batch(gather, Of::dk, batch, queries, cols);
      gather.await();
      add_batch(gather, Of::dv, batch, douts, 0, v_cols, dv);
      add_batch(gather, Of::dk, batch, queries, 0, cols, dk);
    }
    G::share(dv, own_dv);
    G::share(dk, own_dk);
  }
  add_unlisted<G, Of::dv>(p, block, key, has_unlisted, 0, own_dv);
  add_unlisted<G, Of::dk>(p, block, key, has_unlisted, 0, own_dk);
  store_chunk<G, Of::dv>(p, block, key, 0, own_dv);
  store_chunk<G, Of::dk>(p, block, key, 0, own_dk);
}

// One of them.
template <class G, Of kOf, class EntryAt>
__device__ __forceinline__ void follow_key(const G& gather, const EntmaxBackwardParams& p,
                                           const RowBlock& block, int64_t key, uint32_t count,
                                           bool has_unlisted, EntryAt entry_at) {
  const auto rows =
      rows_of_unit<typename G::Storage>(p, kOf == Of::dv ? p.dout : p.q, block.batch, block.head);
  const int32_t cols = kOf == Of::dv ? p.sizes.v_head_dim : p.sizes.head_dim;
  G::for_each_chunk(cols, [&](int32_t first) {
    typename G::OwnColumns own = {};
    sum_entries(gather, kOf, own, rows, first, cols, count, entry_at);
    add_unlisted<G, kOf>(p, block, key, has_unlisted, first, own);
    store_chunk<G, kOf>(p, block, key, first, own);
  });
}

// kOrdered: entries are added in ascending order of their rows.
template <class G, bool kOrdered>
__global__ void __launch_bounds__(32 * kKeyWarps, G::kSteps > 1 ? 4 : 6)
    follow_keys(const __grid_constant__ EntmaxBackwardParams p) {
  extern __shared__ __align__(128) unsigned char rooms[];
  const G gather(rooms + threadIdx.x / 32 * G::kRoomBytes);
  constexpr uint32_t kRoom = kOrdered ? kMostOfWarp : 1;
  __shared__ alignas(16) uint32_t places[kKeyWarps][kRoom];
  __shared__ uint8_t order[kKeyWarps][kRoom];  // the entry that comes first, and so on
  static_assert(kMostOfWarp <= 256);
  const int32_t lane = int32_t(threadIdx.x % 32), warp = int32_t(threadIdx.x / 32);
  const RowBlock block = my_row_block<kKeysOfCta>(p.sizes.kv_heads, p.sizes.k_len);
  const bool has_unlisted = p.has_unlisted();
  // Lane i has the counts of the warp's key i.
  uint32_t counts = 0, ends = 0;
  if (lane < kKeysOfWarp && warp + lane * kKeyWarps < block.count) {
    const int64_t at = block.head_index * p.sizes.k_len + block.first + warp + lane * kKeyWarps;
    counts = p.keys.count[at];
    ends = counts > 0 ? p.keys.end[at] : 0;
  }
  const KeyEntry* const all = p.keys.entries + block.head_index * p.entries_of_unit();
  for (int32_t i = 0; i < kKeysOfWarp; ++i) {
    const int32_t index = warp + i * kKeyWarps;
    if (index >= block.count) break;
    const uint32_t count = __shfl_sync(~0u, counts, i);
    const KeyEntry* const entries = all + (__shfl_sync(~0u, ends, i) - count);
    if (count > kMostOfWarp) continue;
    const int64_t key = block.first + index;
    if constexpr (kOrdered) {
      for (uint32_t n = uint32_t(lane); n < count; n += 32) places[warp][n] = entries[n].place;
      __syncwarp();
      rank_numbers(places[warp], count,
                   [&](uint32_t rank, int32_t j) { order[warp][rank] = uint8_t(lane + 32 * j); });
    }
    const auto entry_at = [&](uint32_t n) { return entries[kOrdered ? order[warp][n] : n]; };
    if constexpr (G::kRoomBytes > 0) {
      follow_key_at_once(gather, p, block, key, count, has_unlisted, entry_at);
    } else {
      follow_key<G, Of::dv>(gather, p, block, key, count, has_unlisted, entry_at);
      follow_key<G, Of::dk>(gather, p, block, key, count, has_unlisted, entry_at);
    }
    if constexpr (kOrdered) __syncwarp();
  }
}

// --- busy keys: a CTA takes a chunk of the entries, each warp a part of it ---

template <class Storage, Of kOf>
__device__ void store_busy(const EntmaxBackwardParams& p, int32_t unit, int32_t key, int32_t col,
                           float sum) {
  const bool has_unlisted = p.has_unlisted();
  const KeyTarget target = target_of<kOf>(p, unit * p.sizes.k_len + key, has_unlisted);
  if (target.unlisted != nullptr) sum += target.unlisted[col];
  const int32_t batch = unit / p.sizes.kv_heads;
  Storage* const to = target.to.row<Storage>(batch, unit - batch * p.sizes.kv_heads, key);
  to[col] = stored_as<Storage>(sum);
}
__device__ __forceinline__ float* sums_of_slot(const EntmaxBackwardParams& p, int32_t slot, Of of) {
  const int64_t cols = p.sizes.v_head_dim + p.sizes.head_dim;
  return p.keys.busy_sums + slot * cols + (of == Of::dk ? p.sizes.v_head_dim : 0);
}

template <class G, Of kOf>
__device__ void follow_busy_key(const G& gather, const EntmaxBackwardParams& p,
                                const BusyItem& item, float (&sums)[kBusyWarps<G>][kWidest]) {
  using Storage = typename G::Storage;
  const int32_t warp = int32_t(threadIdx.x / 32);
  const int64_t at = item.unit * p.sizes.k_len + item.key;
  const uint32_t count = p.keys.count[at], first = uint32_t(item.chunk) * kBusyChunk;
  const KeyEntry* const all =
      p.keys.entries + item.unit * p.entries_of_unit() + (p.keys.end[at] - count);
  // Whole batches, as even as can be.
  constexpr uint32_t kOfRound = kBusyWarps<G> * kGatherPlaces;
  const uint32_t most = (min(count - first, kBusyChunk) + kOfRound - 1) / kOfRound * kGatherPlaces;
  const uint32_t begin = first + uint32_t(warp) * most, end = min(count, first + kBusyChunk);
  const uint32_t part = begin < end ? min(end - begin, most) : 0;
  const int32_t batch = item.unit / p.sizes.kv_heads;
  const auto rows = rows_of_unit<Storage>(p, kOf == Of::dv ? p.dout : p.q, batch,
                                          item.unit - batch * p.sizes.kv_heads);
  const int32_t cols = kOf == Of::dv ? p.sizes.v_head_dim : p.sizes.head_dim;
  const bool is_ordered = p.keys.is_ordered;
  G::for_each_chunk(cols, [&](int32_t first_column) {
    typename G::OwnColumns own = {};
    sum_entries(gather, kOf, own, rows, first_column, cols, part,
                [&](uint32_t i) { return all[is_ordered ? all[begin + i].order : begin + i]; });
    G::store_sums(sums[warp], first_column, cols, own);
  });
  __syncthreads();
  for (int32_t col = int32_t(threadIdx.x); col < cols; col += 32 * kBusyWarps<G>) {
    float sum = 0;
    for (int32_t w = 0; w < kBusyWarps<G>; ++w) sum += sums[w][col];
    if (item.slot < 0) {
      store_busy<Storage, kOf>(p, item.unit, item.key, col, sum);
    } else {
      sums_of_slot(p, item.slot + item.chunk, kOf)[col] = sum;
    }
  }
  __syncthreads();
}

template <class G>
__global__ void __launch_bounds__(32 * kBusyWarps<G>)
    follow_busy_keys(const __grid_constant__ EntmaxBackwardParams p) {
  extern __shared__ __align__(128) unsigned char rooms[];
  const G gather(rooms + threadIdx.x / 32 * G::kRoomBytes);
  __shared__ float sums[kBusyWarps<G>][kWidest];
  const uint32_t num_busy = p.counters->num_busy;
  for (uint32_t i = blockIdx.x; i < num_busy; i += gridDim.x) {
    const BusyItem item = p.keys.busy[i];
    follow_busy_key<G, Of::dv>(gather, p, item, sums);
    follow_busy_key<G, Of::dk>(gather, p, item, sums);
  }
}

constexpr int32_t kCombineThreads = 256;

template <class Storage, Of kOf>
__device__ void combine_key(const EntmaxBackwardParams& p, const BusyItem& item, uint32_t chunks) {
  const int32_t cols = kOf == Of::dv ? p.sizes.v_head_dim : p.sizes.head_dim;
  for (int32_t col = int32_t(threadIdx.x); col < cols; col += kCombineThreads) {
    float sum = 0;
    for (uint32_t c = 0; c < chunks; ++c) {
      sum += sums_of_slot(p, item.slot + int32_t(c), kOf)[col];
    }
    store_busy<Storage, kOf>(p, item.unit, item.key, col, sum);
  }
}
template <class Storage>
__global__ void __launch_bounds__(kCombineThreads)
    combine_busy_keys(const __grid_constant__ EntmaxBackwardParams p) {
  if (p.counters->num_slots == 0) return;
  const uint32_t num_busy = p.counters->num_busy;
  for (uint32_t i = blockIdx.x; i < num_busy; i += gridDim.x) {
    const BusyItem item = p.keys.busy[i];
    if (item.chunk != 0 || item.slot < 0) continue;
    const uint32_t count = p.keys.count[item.unit * p.sizes.k_len + item.key];
    const uint32_t chunks = (count - 1) / kBusyChunk + 1;
    combine_key<Storage, Of::dv>(p, item, chunks);
    combine_key<Storage, Of::dk>(p, item, chunks);
  }
}

template <class G>
void launch_follow_keys(const EntmaxBackwardParams& p, int32_t num_processors,
                        cudaStream_t stream) {
  const uint32_t ctas = num_row_blocks<kKeysOfCta>(p.num_units(), p.sizes.k_len);
  if (ctas == 0) return;
  const auto follow = p.keys.is_ordered ? follow_keys<G, true> : follow_keys<G, false>;
  constexpr int kBytes = kKeyWarps * G::kRoomBytes, kBusyBytes = kBusyWarps<G> * G::kRoomBytes;
  static OncePerGpu reserve[2], reserve_busy;
  reserve_shared_memory(reserve[p.keys.is_ordered ? 1 : 0], follow, kBytes,
                        "the backward pass of entmax");
  launch("the backward pass of entmax, by key", follow, {ctas, 32 * kKeyWarps, size_t{kBytes}},
         stream, p);
  if (p.num_rows() == 0) return;
  // They exit at once unless there are busy keys.
  const unsigned busy_ctas = 4 * unsigned(std::max(num_processors, 1));
  reserve_shared_memory(reserve_busy, follow_busy_keys<G>, kBusyBytes,
                        "the backward pass of entmax");
  launch("the backward pass of entmax, busy keys", follow_busy_keys<G>,
         {busy_ctas, 32 * kBusyWarps<G>, size_t{kBusyBytes}}, stream, p);
  launch("the sums of busy keys", combine_busy_keys<typename G::Storage>,
         {busy_ctas, kCombineThreads, 0}, stream, p);
}

}  // namespace keyhole::device
