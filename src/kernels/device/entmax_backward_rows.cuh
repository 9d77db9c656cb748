// src/kernels/device/entmax_backward_rows.cuh
// By the support of a row: delta, dq, and what the row gives to each of its keys. G: how rows are
// gathered and multiplied (gather_rows.cuh, mma/tensor_gather.cuh).
//
// A warp takes one row at a time. Lane L has the keys of places G::place_of_lane() and 32 more:
// their products, weights and gradients stay in its registers.
#pragma once

#include "kernels/device/entmax_pair.cuh"
#include "kernels/device/gather_rows.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"

namespace keyhole::device {

constexpr int32_t kQueryWarps = 4;  // per CTA
constexpr int32_t kQueriesOfCta =
    8 * kQueryWarps;  // few: the last CTAs do not keep the GPU waiting
constexpr int32_t kBatches = int32_t(kSupportKeys) / kGatherPlaces;
// Slots of a warp: the keys and the values of a batch.
constexpr int32_t kSlotsOfRows = 2, kKeySlot = 0, kValueSlot = 1;

struct ListedRow {
  int32_t key[kBatches];  // of this lane's places
  float lambda;
};
template <class G>
__device__ __forceinline__ ListedRow load_listed(const EntmaxBackwardParams& p,
                                                 const RowBlock& block, int64_t query) {
  const int32_t* keys = p.support.row<const int32_t>(block.batch, block.head, query);
  ListedRow row;
#pragma unroll
  for (int32_t b = 0; b < kBatches; ++b) row.key[b] = keys[b * kGatherPlaces + G::place_of_lane()];
  row.lambda = *p.lambda.row<const float>(block.batch, block.head, query);
  return row;
}

// Whether one of the rows of a warp, from `first` on, is followed here. Where alpha is near 1,
// often none is.
__device__ __forceinline__ bool has_work(const EntmaxBackwardParams& p, const RowBlock& block,
                                         int32_t first) {
  const int32_t index = first + int32_t(threadIdx.x % 32) * kQueryWarps;
  bool is_followed = false;
  if (index < block.count) {
    const int64_t query = block.first + index;
    const float lambda = *p.lambda.row<const float>(block.batch, block.head, query);
    const int32_t key = *p.support.row<const int32_t>(block.batch, block.head, query);
    is_followed = lambda == -INFINITY || is_usable(key, lambda);
  }
  return __any_sync(~0u, is_followed);
}

// What the keys of this lane get.
struct Pairs {
  float product[kBatches], dvalue[kBatches];
  float weight[kBatches], slope[kBatches];
};

// Weights against a lambda that was rounded when it was stored, for dtypes that show it. They add
// up to 1, so what rounding explains is made good: lambda moves by a step, and what is left of the
// sum is shared. As on the CPU (cpu/entmax_backward.cpp).
__device__ inline void make_good(const EntmaxBackwardParams& p, const EntmaxPairRule& rule,
                                 int32_t head, const ListedRow& row, Pairs& pairs) {
  const float unit = 1.1920929e-7f * (1 + fabsf(row.lambda));
  const auto sums = [&](float above) {
    const EntmaxTerms<float> sink = rule.sink_terms(p, head, row.lambda + above);
    EntmaxSums<float> all;
#pragma unroll
    for (int32_t b = 0; b < kBatches; ++b) {
      all.weight += pairs.weight[b];
      all.slope += pairs.slope[b];
      all.count += pairs.slope[b] > 0 ? 1 : 0;
    }
    return EntmaxSums<float>{warp_sum(all.weight) + sink.weight, warp_sum(all.slope) + sink.slope,
                             warp_sum(all.count) + (sink.slope > 0 ? 1 : 0)};
  };
  EntmaxSums<float> all = sums(0);
  const float step = lambda_step(p.power, all);
  if (fabsf(step) <= 4 * unit && step != 0) {
#pragma unroll
    for (int32_t b = 0; b < kBatches; ++b) {
      if (row.key[b] < 0) continue;
      const auto terms = rule.terms((rule.score(pairs.product[b]) - row.lambda) - step);
      pairs.weight[b] = terms.weight;
      pairs.slope[b] = terms.slope;
    }
    all = sums(step);
  }
  if (!(fabsf(all.weight - 1) <= 4 * unit * all.slope)) return;
#pragma unroll
  for (int32_t b = 0; b < kBatches; ++b) pairs.weight[b] /= all.weight;
}

template <class G>
__device__ __forceinline__ void store_zeros(typename G::Storage* dq, int32_t cols) {
  G::for_each_chunk(cols, [&](int32_t first) {
    const typename G::OwnColumns zeros = {};
    G::store(dq, first, cols, zeros);
  });
}

// row.key: -1 where there is none.
template <class G>
__device__ __forceinline__ void follow_row(const G& gather, const EntmaxBackwardParams& p,
                                           const EntmaxPairRule& rule, const RowBlock& block,
                                           int64_t query, const ListedRow& row) {
  using Storage = typename G::Storage;
  const Sizes& sizes = p.sizes;
  const int32_t kv_head = sizes.kv_head_of(block.head);
  const int32_t unit = block.batch * sizes.kv_heads + kv_head;
  const auto k = rows_of_head<Storage>(p.k, block.batch, kv_head);
  const auto v = rows_of_head<Storage>(p.v, block.batch, kv_head);
  const Storage* const q = p.q.row<const Storage>(block.batch, block.head, query);
  const Storage* const dout = p.dout.row<const Storage>(block.batch, block.head, query);

  int32_t loads[kBatches];
  uint32_t place[kBatches];  // asked for early: the answer is needed last
#pragma unroll
  for (int32_t b = 0; b < kBatches; ++b) {
    loads[b] = G::loads_for(row.key[b] >= 0);
    place[b] = 0;
    if (row.key[b] >= 0) place[b] = atomicAdd(p.keys.end + unit * sizes.k_len + row.key[b], 1u);
  }
  Pairs pairs;
#pragma unroll
  for (int32_t b = 0; b < kBatches; ++b) {
    pairs.dvalue[b] = pairs.product[b] = 0;
    if (loads[b] == 0) continue;
    gather.start(kKeySlot, k, sizes.head_dim, row.key[b], loads[b]);
    gather.start(kValueSlot, v, sizes.v_head_dim, row.key[b], loads[b]);
    gather.await();
    pairs.dvalue[b] = gather.dot(kValueSlot, dout, v, sizes.v_head_dim, row.key[b], loads[b]);
    pairs.product[b] = gather.dot(kKeySlot, q, k, sizes.head_dim, row.key[b], loads[b]);
  }
#pragma unroll
  for (int32_t b = 0; b < kBatches; ++b) {
    pairs.weight[b] = pairs.slope[b] = 0;
    if (row.key[b] < 0) continue;
    const auto terms = rule.terms(rule.score(pairs.product[b]) - row.lambda);
    pairs.weight[b] = terms.weight;
    pairs.slope[b] = terms.slope;
  }
  if constexpr (sizeof(Storage) == 4) make_good(p, rule, block.head, row, pairs);

  float slopes = 0, sum = 0;
#pragma unroll
  for (int32_t b = 0; b < kBatches; ++b) {
    // At alpha = 2 a slope is 1 or 0: who has weight is for the forward pass to say.
    if (rule.weights.whole == 1 && row.key[b] >= 0) pairs.slope[b] = 1;
    slopes += pairs.slope[b];
    sum += pairs.slope[b] == 0 ? 0.f : pairs.slope[b] * pairs.dvalue[b];
  }
  const float of_sink = rule.sink_terms(p, block.head, row.lambda).slope;
  const float delta =
      delta_of_row(p, block.batch, block.head, query, warp_sum(sum), warp_sum(slopes) + of_sink);
  float dscore[kBatches];
#pragma unroll
  for (int32_t b = 0; b < kBatches; ++b) {
    dscore[b] = dscore_of(pairs.slope[b], pairs.dvalue[b], delta, rule.steepness(pairs.product[b]));
  }

  Storage* const dq = p.dq.row<Storage>(block.batch, block.head, query);
  G::for_each_chunk(sizes.head_dim, [&](int32_t first) {
    typename G::Columns columns = {};
    // From the last batch on: its keys are still in the slot.
#pragma unroll
    for (int32_t b = kBatches - 1; b >= 0; --b) {
      if (loads[b] == 0) continue;
      if (b + 1 < kBatches && loads[b + 1] != 0) {
        gather.start(kKeySlot, k, sizes.head_dim, row.key[b], loads[b]);
        gather.await();
      }
      gather.add(columns, kKeySlot, k, first, sizes.head_dim, row.key[b], dscore[b], loads[b]);
    }
    typename G::OwnColumns own = {};
    G::share(columns, own);
    G::store(dq, first, sizes.head_dim, own);
  });

  KeyEntry* const entries = p.keys.entries + unit * p.entries_of_unit();
  const int32_t head_in_group = block.head - kv_head * p.group();
#pragma unroll
  for (int32_t b = 0; b < kBatches; ++b) {
    if (row.key[b] < 0) continue;
    const int32_t slot = b * kGatherPlaces + G::place_of_lane();
    entries[place[b]] = {p.keys.places.place(head_in_group, query, slot), pairs.weight[b],
                         dscore[b], 0};
  }
  if (threadIdx.x % 32 == 0) p.delta[block.head_index * sizes.q_len + query] = delta;
}

template <class G>
__global__ void __launch_bounds__(32 * kQueryWarps, G::kSteps == 1 ? 5 : 4)
    follow_rows(const __grid_constant__ EntmaxBackwardParams p) {
  extern __shared__ __align__(128) unsigned char rooms[];
  const G gather(rooms + threadIdx.x / 32 * G::kRoomBytes);
  const EntmaxPairRule rule = EntmaxPairRule::of(p);
  const RowBlock block = my_row_block<kQueriesOfCta>(p.sizes.heads, p.sizes.q_len);
  int32_t index = int32_t(threadIdx.x / 32);
  if (!has_work(p, block, index)) return;
  ListedRow next = load_listed<G>(p, block, block.first + index);
  for (; index < block.count; index += kQueryWarps) {
    ListedRow row = next;
    const int64_t query = block.first + index;
    if (index + kQueryWarps < block.count) next = load_listed<G>(p, block, query + kQueryWarps);
    if (row.lambda == -INFINITY) {
      store_zeros<G>(p.dq.row<typename G::Storage>(block.batch, block.head, query),
                     p.sizes.head_dim);
      if (threadIdx.x % 32 == 0) p.delta[block.head_index * p.sizes.q_len + query] = 0;
      continue;
    }
    if (!is_usable(__shfl_sync(~0u, row.key[0], 0), row.lambda)) continue;
#pragma unroll
    for (int32_t& key : row.key) {  // a number that is no key must never become an address
      if (uint64_t(uint32_t(key)) >= uint64_t(p.sizes.k_len)) key = -1;
    }
    follow_row(gather, p, rule, block, query, row);
  }
}

template <class G>
void launch_follow_rows(const EntmaxBackwardParams& params, cudaStream_t stream) {
  const uint32_t ctas = num_row_blocks<kQueriesOfCta>(params.sizes.num_heads(), params.sizes.q_len);
  if (ctas == 0) return;
  constexpr int kBytes = kQueryWarps * G::kRoomBytes;
  static OncePerGpu reserve;
  reserve_shared_memory(reserve, follow_rows<G>, kBytes, "the backward pass of entmax");
  launch("the backward pass of entmax, by row", follow_rows<G>,
         {ctas, 32 * kQueryWarps, size_t{kBytes}}, stream, params);
}

}  // namespace keyhole::device
