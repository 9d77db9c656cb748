// src/kernels/device/entmax_backward_alone.cu
// A warp takes one row, or one key. It collects the keys of the row (or the rows of the key) in
// batches of 32 and gathers them as a list.
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_backward_alone.h"
#include "kernels/device/entmax_pair.cuh"
#include "kernels/device/gather_rows.cuh"
#include "kernels/device/partner_walk.cuh"

namespace keyhole::device {
namespace {

constexpr int32_t kAloneWarps = 4;      // per CTA
constexpr int32_t kAloneColumns = 576;  // columns of a row

// Adds a batch to a row of sums in shared memory.
template <class G, class RowAt>
__device__ __forceinline__ void add_batch(float* sums, RowAt rows, int32_t cols, int32_t index,
                                          float weight, int32_t loads) {
  G::for_each_chunk(cols, [&](int32_t first) {
    typename G::Columns columns = {};
    G::add(columns, rows, first, cols, index, weight, loads);
    typename G::OwnColumns own = {};
    G::share(columns, own);
    G::add_sums(sums, first, cols, own);
    G::store_sums(sums, first, cols, own);
  });
}

// --- rows ---

struct RowRoom {  // shared memory of a warp
  float dq[kAloneColumns];
  uint32_t counts[kRankDigits];
  int32_t waiting[64];
};

template <class G>
struct AloneRow {
  using Storage = typename G::Storage;
  const EntmaxBackwardParams& p;
  const DevicePlan& plan;
  BitmapLayout layout;
  const EntmaxPairRule& rule;
  int32_t batch, head;
  int64_t query;
  RowRoom& room;

  // Calls visit(key, product, loads) for all keys of the row, 32 at a time.
  template <class Visit>
  __device__ __forceinline__ void for_each_product(Visit visit) const {
    const auto k = rows_of_head<Storage>(p.k, batch, p.sizes.kv_head_of(head));
    const Storage* const q = p.q.row<const Storage>(batch, head, query);
    PartnerBatches<false> keys(plan, layout, batch * p.sizes.heads + head, query, room.waiting);
    const auto all = [](int64_t) { return true; };
    for (int32_t key; keys.next(all, place_of_lane(), key);) {
      const int32_t loads = loads_for(key >= 0);
      visit(key, G::dot(q, k, p.sizes.head_dim, key, loads), loads);
    }
  }

  __device__ LastRank find_last_taken(float lambda) const {
    if (p.top_k == 0 || !is_finite(lambda)) return {};
    return find_last_rank<SearchingWarp>(p.top_k, room.counts, [&](auto visit) {
      for_each_product([&](int32_t key, float product, int32_t) {
        visit(key >= 0, rank_of(rule.score(product), key));
      });
    });
  }

  // Calls visit(key, product, terms, dout . v, loads). Values of keys without weight are not read.
  template <class Visit>
  __device__ __forceinline__ void for_each_pair(float lambda, const LastRank& last_rank,
                                                Visit visit) const {
    const auto v = rows_of_head<Storage>(p.v, batch, p.sizes.kv_head_of(head));
    const Storage* const dout = p.dout.row<const Storage>(batch, head, query);
    for_each_product([&](int32_t key, float product, int32_t) {
      EntmaxTerms<float> terms = {0, 0};
      if (key >= 0) terms = terms_of(rule, product, lambda, key, last_rank);
      const int32_t listed = terms.slope != 0 || terms.weight != 0 ? key : -1;
      const int32_t loads = loads_for(listed >= 0);
      if (loads == 0) return;
      visit(listed, product, terms, G::dot(dout, v, p.sizes.v_head_dim, listed, loads), loads);
    });
  }

  __device__ void follow() const {
    const float lambda = *p.lambda.row<const float>(batch, head, query);
    const LastRank last_rank = find_last_taken(lambda);
    double sum = 0, slopes = 0;  // long rows: many terms
    for_each_pair(lambda, last_rank,
                  [&](int32_t key, float, const EntmaxTerms<float>& terms, float dvalue, int32_t) {
                    if (key < 0 || terms.slope == 0) return;
                    sum += double(terms.slope) * double(dvalue);
                    slopes += double(terms.slope);
                  });
    const double of_sink =
        lambda == -INFINITY ? 0. : double(rule.sink_terms(p, head, lambda).slope);
    const float delta = delta_of_row(p, batch, head, query, float(warp_sum(sum)),
                                     float(warp_sum(slopes) + of_sink));

    const int32_t cols = p.sizes.head_dim;
    const auto k = rows_of_head<Storage>(p.k, batch, p.sizes.kv_head_of(head));
    G::for_each_chunk(cols, [&](int32_t first) {
      const typename G::OwnColumns zeros = {};
      G::store_sums(room.dq, first, cols, zeros);
    });
    for_each_pair(lambda, last_rank,
                  [&](int32_t key, float product, const EntmaxTerms<float>& terms, float dvalue,
                      int32_t loads) {
                    const float dscore =
                        key < 0 ? 0.f
                                : dscore_of(terms.slope, dvalue, delta, rule.steepness(product));
                    add_batch<G>(room.dq, k, cols, key, dscore, loads);
                  });
    G::for_each_chunk(cols, [&](int32_t first) {
      typename G::OwnColumns own = {};
      G::add_sums(room.dq, first, cols, own);
      G::store(p.dq.row<Storage>(batch, head, query), first, cols, own);
    });
    const int64_t row = (int64_t{batch} * p.sizes.heads + head) * p.sizes.q_len + query;
    if (threadIdx.x % 32 != 0) return;
    p.delta[row] = delta;
    if (p.last_rank != nullptr) p.last_rank[row] = last_rank;
  }
};

template <class G>
__global__ void __launch_bounds__(32 * kAloneWarps)
    follow_rows_alone(const __grid_constant__ EntmaxBackwardParams p,
                      const __grid_constant__ DevicePlan plan, BitmapLayout layout) {
  __shared__ RowRoom rooms[kAloneWarps];
  if (p.counters->any_alone == 0) return;
  const EntmaxPairRule rule = EntmaxPairRule::of(p);
  const int32_t warp = int32_t(threadIdx.x / 32);
  const int64_t step = int64_t{gridDim.x} * kAloneWarps;
  const int64_t num_queued = int64_t(p.counters->num_queued);
  for (int64_t i = int64_t{blockIdx.x} * kAloneWarps + warp; i < num_queued; i += step) {
    const int64_t row = p.long_rows.queue[i].row;
    if (!p.is_alone[row]) continue;
    const RowAddress at = p.address_of(row);
    AloneRow<G>{p, plan, layout, rule, at.batch, at.head, at.query, rooms[warp]}.follow();
  }
}

// --- keys ---

struct KeyRoom {
  float dk[kAloneColumns], dv[kAloneColumns];
  int32_t waiting[64];
};

// What the rows alone of one head give to a key.
template <class G>
__device__ void follow_head(const EntmaxBackwardParams& p, const DevicePlan& plan,
                            BitmapLayout layout, const EntmaxPairRule& rule, int32_t batch,
                            int32_t head, int64_t key, KeyRoom& room) {
  using Storage = typename G::Storage;
  const Sizes& sizes = p.sizes;
  const int32_t kv_head = sizes.kv_head_of(head), head_index = batch * sizes.heads + head;
  const int64_t first_row = head_index * sizes.q_len;
  const auto q = rows_of_head<Storage>(p.q, batch, head);
  const auto dout = rows_of_head<Storage>(p.dout, batch, head);
  const Storage* const k = p.k.row<const Storage>(batch, kv_head, key);
  const Storage* const v = p.v.row<const Storage>(batch, kv_head, key);
  const auto keep = [&](int64_t query) { return p.is_alone[first_row + query] != 0; };
  PartnerBatches<true> queries(plan, layout, head_index, key, room.waiting);
  for (int32_t query; queries.next(keep, place_of_lane(), query);) {
    const float product = G::dot(k, q, sizes.head_dim, query, loads_for(query >= 0));
    EntmaxTerms<float> terms = {0, 0};
    if (query >= 0) {
      const LastRank last = p.last_rank == nullptr ? LastRank{} : p.last_rank[first_row + query];
      const float lambda = *p.lambda.row<const float>(batch, head, query);
      terms = terms_of(rule, product, lambda, int32_t(key), last);
    }
    const int32_t listed = terms.slope != 0 || terms.weight != 0 ? query : -1;
    const int32_t loads = loads_for(listed >= 0);
    if (loads == 0) continue;
    const float dvalue = G::dot(v, dout, sizes.v_head_dim, listed, loads);
    float dscore = 0;
    if (listed >= 0) {
      dscore = dscore_of(terms.slope, dvalue, p.delta[first_row + query], rule.steepness(product));
    }
    add_batch<G>(room.dv, dout, sizes.v_head_dim, listed, terms.weight, loads);
    add_batch<G>(room.dk, q, sizes.head_dim, listed, dscore, loads);
  }
}

template <class G>
__global__ void __launch_bounds__(32 * kAloneWarps)
    follow_keys_alone(const __grid_constant__ EntmaxBackwardParams p,
                      const __grid_constant__ DevicePlan plan, BitmapLayout layout) {
  __shared__ KeyRoom rooms[kAloneWarps];
  if (p.counters->any_alone == 0) return;
  const EntmaxPairRule rule = EntmaxPairRule::of(p);
  const int32_t lane = int32_t(threadIdx.x % 32), warp = int32_t(threadIdx.x / 32);
  const int32_t d = p.sizes.head_dim, vd = p.sizes.v_head_dim;
  const bool keeps_tiles = p.keeps_tiles();  // then they have added to the sums
  const int64_t keys = p.num_units() * p.sizes.k_len, step = int64_t{gridDim.x} * kAloneWarps;
  KeyRoom& room = rooms[warp];
  for (int64_t at = int64_t{blockIdx.x} * kAloneWarps + warp; at < keys; at += step) {
    const int32_t unit = int32_t(at / p.sizes.k_len);
    const int32_t batch = unit / p.sizes.kv_heads, kv_head = unit - batch * p.sizes.kv_heads;
    for (int32_t col = lane; col < d; col += 32) {
      room.dk[col] = keeps_tiles ? p.dk_unlisted[at * d + col] : 0.f;
    }
    for (int32_t col = lane; col < vd; col += 32) {
      room.dv[col] = keeps_tiles ? p.dv_unlisted[at * vd + col] : 0.f;
    }
    __syncwarp();
    for (int32_t i = 0; i < p.group(); ++i) {
      follow_head<G>(p, plan, layout, rule, batch, kv_head * p.group() + i,
                     at - unit * p.sizes.k_len, room);
    }
    __syncwarp();
    for (int32_t col = lane; col < d; col += 32) p.dk_unlisted[at * d + col] = room.dk[col];
    for (int32_t col = lane; col < vd; col += 32) p.dv_unlisted[at * vd + col] = room.dv[col];
    __syncwarp();
  }
}

template <class G>
void launch_alone(const EntmaxBackwardParams& p, const DevicePlan& plan, BitmapLayout layout,
                  int32_t num_processors, cudaStream_t stream) {
  const int64_t most = int64_t{8} * std::max(num_processors, 1);
  const auto ctas = [&](int64_t items) {  // the kernels loop over the rest
    return unsigned(std::min(most, ceil_div(items, int64_t{kAloneWarps})));
  };
  follow_rows_alone<G><<<ctas(p.num_rows()), 32 * kAloneWarps, 0, stream>>>(p, plan, layout);
  check_cuda(cudaGetLastError(), "launching the backward pass of entmax, rows alone");
  const int64_t keys = p.num_units() * p.sizes.k_len;
  if (keys == 0) return;
  follow_keys_alone<G><<<ctas(keys), 32 * kAloneWarps, 0, stream>>>(p, plan, layout);
  check_cuda(cudaGetLastError(), "launching the backward pass of entmax, keys of rows alone");
}

}  // namespace

void launch_entmax_backward_alone(const EntmaxBackwardParams& params, const DevicePlan& plan,
                                  BitmapLayout layout, DType dtype, bool is_in_vectors,
                                  int32_t num_processors, cudaStream_t stream) {
  if (params.num_rows() == 0) return;
  const int32_t widest = std::max(params.sizes.head_dim, params.sizes.v_head_dim);
  KEYHOLE_ASSERT(widest <= kAloneColumns, "entmax with head_dim ", widest);
  with_row_gather(dtype, widest, is_in_vectors, [&](auto g) {
    launch_alone<decltype(g)>(params, plan, layout, num_processors, stream);
  });
}

}  // namespace keyhole::device
