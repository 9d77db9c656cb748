// src/kernels/device/entmax_backward_keys.cu
// A warp takes one key at a time, or a CTA a chunk of the entries of a busy one. Rows of q and dout
// are gathered by the entries, and dk and dv written once.
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_backward_keys.h"
#include "kernels/device/entmax_pair.cuh"
#include "kernels/device/gather_rows.cuh"
#include "kernels/device/order_busy_keys.h"
#include "kernels/device/rank_entries.cuh"

namespace keyhole::device {
namespace {

constexpr int32_t kWarps = 8;  // per CTA
constexpr int32_t kKeysOfWarp = 4, kKeysOfCta = kKeysOfWarp * kWarps;
constexpr int32_t kWidest = 576;  // columns of a row

// Rows of q or dout of the query heads that share a kv head, by the place of an entry without its
// slot.
template <class Storage>
struct RowsOfUnit {
  const Storage* first;
  int64_t head_stride, row_stride;
  int32_t query_bits;
  __device__ __forceinline__ const Storage* operator()(int32_t row) const {
    const int32_t head = row >> query_bits, query = row & ((1 << query_bits) - 1);
    return first + head * head_stride + query * row_stride;
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

// Sums weight * row over `count` entries, for one chunk of columns. entry_at(i): of entry i.
template <class G, Of kOf, class EntryAt>
__device__ __forceinline__ void sum_entries(typename G::OwnColumns& own,
                                            const RowsOfUnit<typename G::Storage>& rows,
                                            int32_t first_column, int32_t cols, uint32_t count,
                                            EntryAt entry_at) {
  typename G::Columns columns = {};
  for (uint32_t first = 0; first < count; first += kGatherPlaces) {
    const uint32_t i = first + uint32_t(place_of_lane());
    const bool is_inside = i < count;
    const KeyEntry entry = is_inside ? entry_at(i) : KeyEntry{};
    const float weight = kOf == Of::dv ? entry.weight : entry.dscore;
    G::add(columns, rows, first_column, cols, int32_t(entry.place >> EntryPlaces::kSlotBits),
           is_inside ? weight : 0.f, loads_for(is_inside));
  }
  G::share(columns, own);
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

template <class G, Of kOf, class EntryAt>
__device__ __forceinline__ void follow_key(const EntmaxBackwardParams& p, const RowBlock& block,
                                           int64_t key, uint32_t count, bool has_unlisted,
                                           EntryAt entry_at) {
  using Storage = typename G::Storage;
  const KeyTarget target = target_of<kOf>(p, block.head_index * p.sizes.k_len + key, has_unlisted);
  const auto rows = rows_of_unit<Storage>(p, kOf == Of::dv ? p.dout : p.q, block.batch, block.head);
  Storage* const to = target.to.row<Storage>(block.batch, block.head, key);
  G::for_each_chunk(target.cols, [&](int32_t first) {
    typename G::OwnColumns own;
    sum_entries<G, kOf>(own, rows, first, target.cols, count, entry_at);
    if (target.unlisted != nullptr) G::add_sums(target.unlisted, first, target.cols, own);
    G::store(to, first, target.cols, own);
  });
}

// kOrdered: entries are added in ascending order of their rows.
template <class G, bool kOrdered>
__global__ void __launch_bounds__(32 * kWarps, G::kSteps == 1 ? 3 : 2)
    follow_keys(const __grid_constant__ EntmaxBackwardParams p) {
  constexpr uint32_t kRoom = kOrdered ? kMostOfWarp : 1;
  __shared__ KeyEntry ordered[kWarps][kRoom];
  __shared__ alignas(16) uint32_t places[kWarps][kRoom];
  const int32_t lane = int32_t(threadIdx.x % 32), warp = int32_t(threadIdx.x / 32);
  const RowBlock block = my_row_block<kKeysOfCta>(p.sizes.kv_heads, p.sizes.k_len);
  const bool has_unlisted = p.has_unlisted();
  // Lane i has the counts of the warp's key i.
  uint32_t counts = 0, ends = 0;
  if (lane < kKeysOfWarp && warp + lane * kWarps < block.count) {
    const int64_t at = block.head_index * p.sizes.k_len + block.first + warp + lane * kWarps;
    counts = p.keys.count[at];
    ends = counts > 0 ? p.keys.end[at] : 0;
  }
  for (int32_t i = 0; i < kKeysOfWarp; ++i) {
    const int32_t index = warp + i * kWarps;
    if (index >= block.count) break;
    const uint32_t count = __shfl_sync(~0u, counts, i);
    const uint32_t begin = __shfl_sync(~0u, ends, i) - count;
    if (count > kMostOfWarp) continue;
    const KeyEntry* const entries = p.keys.entries + block.head_index * p.entries_of_unit() + begin;
    const int64_t key = block.first + index;
    if constexpr (kOrdered) {
      for (uint32_t n = uint32_t(lane); n < count; n += 32) places[warp][n] = entries[n].place;
      __syncwarp();
      rank_numbers(places[warp], count,
                   [&](uint32_t rank, uint32_t n) { ordered[warp][rank] = entries[n]; });
      const auto entry_at = [&](uint32_t n) { return ordered[warp][n]; };
      follow_key<G, Of::dv>(p, block, key, count, has_unlisted, entry_at);
      follow_key<G, Of::dk>(p, block, key, count, has_unlisted, entry_at);
      __syncwarp();
    } else {
      const auto entry_at = [&](uint32_t n) { return entries[n]; };
      follow_key<G, Of::dv>(p, block, key, count, has_unlisted, entry_at);
      follow_key<G, Of::dk>(p, block, key, count, has_unlisted, entry_at);
    }
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
__device__ void follow_busy_key(const EntmaxBackwardParams& p, const BusyItem& item,
                                float (&sums)[kWarps][kWidest]) {
  using Storage = typename G::Storage;
  const int32_t warp = int32_t(threadIdx.x / 32);
  const int64_t at = item.unit * p.sizes.k_len + item.key;
  const uint32_t count = p.keys.count[at], first = uint32_t(item.chunk) * kBusyChunk;
  const KeyEntry* const all =
      p.keys.entries + item.unit * p.entries_of_unit() + (p.keys.end[at] - count);
  constexpr uint32_t kPart = kBusyChunk / kWarps;
  const uint32_t begin = first + uint32_t(warp) * kPart;
  const uint32_t part = begin < count ? min(count - begin, kPart) : 0;
  const int32_t batch = item.unit / p.sizes.kv_heads;
  const auto rows = rows_of_unit<Storage>(p, kOf == Of::dv ? p.dout : p.q, batch,
                                          item.unit - batch * p.sizes.kv_heads);
  const int32_t cols = kOf == Of::dv ? p.sizes.v_head_dim : p.sizes.head_dim;
  const bool is_ordered = p.keys.is_ordered;
  G::for_each_chunk(cols, [&](int32_t first_column) {
    typename G::OwnColumns own;
    sum_entries<G, kOf>(own, rows, first_column, cols, part, [&](uint32_t i) {
      return all[is_ordered ? all[begin + i].order : begin + i];
    });
    G::store_sums(sums[warp], first_column, cols, own);
  });
  __syncthreads();
  for (int32_t col = int32_t(threadIdx.x); col < cols; col += 32 * kWarps) {
    float sum = 0;
    for (int32_t w = 0; w < kWarps; ++w) sum += sums[w][col];
    if (item.slot < 0) {
      store_busy<Storage, kOf>(p, item.unit, item.key, col, sum);
    } else {
      sums_of_slot(p, item.slot + item.chunk, kOf)[col] = sum;
    }
  }
  __syncthreads();
}

template <class G>
__global__ void __launch_bounds__(32 * kWarps)
    follow_busy_keys(const __grid_constant__ EntmaxBackwardParams p) {
  __shared__ float sums[kWarps][kWidest];
  const uint32_t num_busy = p.counters->num_busy;
  for (uint32_t i = blockIdx.x; i < num_busy; i += gridDim.x) {
    const BusyItem item = p.keys.busy[i];
    follow_busy_key<G, Of::dv>(p, item, sums);
    follow_busy_key<G, Of::dk>(p, item, sums);
  }
}

template <class Storage, Of kOf>
__device__ void combine_key(const EntmaxBackwardParams& p, const BusyItem& item, uint32_t chunks) {
  const int32_t cols = kOf == Of::dv ? p.sizes.v_head_dim : p.sizes.head_dim;
  for (int32_t col = int32_t(threadIdx.x); col < cols; col += 32 * kWarps) {
    float sum = 0;
    for (uint32_t c = 0; c < chunks; ++c) {
      sum += sums_of_slot(p, item.slot + int32_t(c), kOf)[col];
    }
    store_busy<Storage, kOf>(p, item.unit, item.key, col, sum);
  }
}
template <class Storage>
__global__ void __launch_bounds__(32 * kWarps)
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
void launch(const EntmaxBackwardParams& p, uint32_t ctas, int32_t num_processors,
            cudaStream_t stream) {
  if (p.keys.is_ordered) {
    follow_keys<G, true><<<ctas, 32 * kWarps, 0, stream>>>(p);
  } else {
    follow_keys<G, false><<<ctas, 32 * kWarps, 0, stream>>>(p);
  }
  check_cuda(cudaGetLastError(), "launching the backward pass of entmax, by key");
  if (p.num_rows() == 0) return;
  // They exit at once unless there are busy keys.
  const unsigned busy_ctas = 4 * unsigned(std::max(num_processors, 1));
  follow_busy_keys<G><<<busy_ctas, 32 * kWarps, 0, stream>>>(p);
  check_cuda(cudaGetLastError(), "launching the backward pass of entmax, busy keys");
  combine_busy_keys<typename G::Storage><<<busy_ctas, 32 * kWarps, 0, stream>>>(p);
  check_cuda(cudaGetLastError(), "launching the sums of busy keys");
}

}  // namespace

void launch_entmax_backward_keys(const EntmaxBackwardParams& params, DType dtype,
                                 bool is_in_vectors, int32_t num_processors, cudaStream_t stream) {
  const Sizes& sizes = params.sizes;
  const uint32_t ctas = num_row_blocks<kKeysOfCta>(params.num_units(), sizes.k_len);
  if (ctas == 0) return;
  const int32_t widest = std::max(sizes.head_dim, sizes.v_head_dim);
  KEYHOLE_ASSERT(widest <= kWidest, "entmax with head_dim ", widest);
  if (params.keys.is_ordered && params.num_rows() > 0)
    order_busy_keys(params, num_processors, stream);
  with_row_gather(dtype, widest, is_in_vectors,
                  [&](auto g) { launch<decltype(g)>(params, ctas, num_processors, stream); });
}

}  // namespace keyhole::device
