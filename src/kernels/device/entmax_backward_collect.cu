// src/kernels/device/entmax_backward_collect.cu
// A CTA takes one row, and each of its warps a share of the row's tiles: rows are few and may be as
// long as the sequence, so a row must not wait for a single warp. Pairs have the order of warps,
// and of keys in the share of a warp: the same on every run. A warp waits for others only at its
// end.
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_backward_collect.h"
#include "kernels/device/entmax_pair.cuh"
#include "kernels/device/gather_rows.cuh"
#include "kernels/device/key_walk.cuh"

namespace keyhole::device {
namespace {

// Many: a row with few others beside it is waited for.
constexpr int32_t kCollectWarps = 16, kCollectThreads = 32 * kCollectWarps;
constexpr uint32_t kStaged = 64;  // pairs of a warp; few have more

struct CollectRoom {                        // shared memory of the CTA
  LongPair staged[kCollectWarps][kStaged];  // until it is known how many there are
  uint32_t counts[kRankDigits];             // of find_last_rank
  uint32_t of_warp[kCollectWarps];          // pairs that each warp has found
  unsigned long long begin;
};

template <class G>
struct QueuedRowWalk {
  using Storage = typename G::Storage;
  const EntmaxBackwardParams& p;
  const DevicePlan& plan;
  BitmapLayout layout;
  const EntmaxPairRule& rule;
  const RowAddress& at;
  CollectRoom& room;

  static __device__ __forceinline__ int32_t warp() { return int32_t(threadIdx.x / 32); }

  // Calls visit(key, product) for the share of this warp. key: -1 where a lane has none. The whole
  // warp calls.
  template <class Visit>
  __device__ __forceinline__ void for_each_batch(Visit visit) const {
    const auto k = rows_of_head<Storage>(p.k, at.batch, p.sizes.kv_head_of(at.head));
    const Storage* const q = p.q.row<const Storage>(at.batch, at.head, at.query);
    KeyWalk walk(plan, layout, at.batch * p.sizes.heads + at.head, at.query,
                 {warp(), kCollectWarps});
    for (int32_t key; walk.next(key);) {
      visit(key, G::dot(q, k, p.sizes.head_dim, key, loads_for(key >= 0)));
    }
  }

  __device__ LastRank find_last_taken() const {
    if (p.top_k == 0) return {};
    return find_last_rank<SearchingCta>(p.top_k, room.counts, [&](auto visit) {
      for_each_batch(
          [&](int32_t key, float product) { visit(key >= 0, rank_of(rule.score(product), key)); });
    });
  }

  // The pairs of this warp, as many as there is room for. Returns how many there are.
  __device__ uint32_t collect(float lambda, const LastRank& last, LongPair* list,
                              uint32_t room_for) const {
    const int32_t lane = int32_t(threadIdx.x % 32);
    uint32_t count = 0;
    for_each_batch([&](int32_t key, float product) {
      EntmaxTerms<float> terms = {0, 0};
      if (key >= 0) terms = terms_of(rule, product, lambda, key, last);
      const bool is_found = terms.slope != 0 || terms.weight != 0;
      const uint32_t found = __ballot_sync(~0u, is_found);
      const uint32_t place = count + uint32_t(__popc(found & ((1u << lane) - 1)));
      if (is_found && place < room_for) list[place] = {key, product, terms.weight, terms.slope};
      count += uint32_t(__popc(found));
    });
    return count;
  }

  __device__ void follow(QueuedRow& queued, float lambda) const {
    const int32_t lane = int32_t(threadIdx.x % 32);
    const LastRank last = find_last_taken();
    LongPair* const staged = room.staged[warp()];
    const uint32_t own = collect(lambda, last, staged, kStaged);
    if (lane == 0) room.of_warp[warp()] = own;
    __syncthreads();
    uint32_t before = 0, count = 0;
#pragma unroll
    for (int32_t w = 0; w < kCollectWarps; ++w) {
      const uint32_t of_warp = room.of_warp[w];
      if (w < warp()) before += of_warp;
      count += of_warp;
    }
    if (threadIdx.x == 0) room.begin = atomicAdd(p.long_rows.taken + at.unit, uint64_t{count});
    __syncthreads();
    const unsigned long long begin = room.begin;
    // Then the unit has no room, whichever of its rows notices.
    if (begin + count > uint64_t(p.long_rows.pairs_of_unit)) return;
    LongPair* const list =
        p.long_rows.pairs + at.unit * p.long_rows.pairs_of_unit + int64_t(begin + before);
    const bool is_staged = own <= kStaged;
    if (!is_staged) collect(lambda, last, list, own);
    __syncwarp();
    uint32_t* const of_key = p.long_rows.count + at.unit * p.sizes.k_len;
    for (uint32_t i = uint32_t(lane); i < own; i += 32) {
      if (is_staged) list[i] = staged[i];
      atomicAdd(of_key + list[i].key, 1u);
    }
    if (threadIdx.x == 0) {
      queued.begin = uint32_t(begin);
      queued.count = count;
    }
  }
};

template <class G>
__global__ void __launch_bounds__(kCollectThreads)
    collect_rows(const __grid_constant__ EntmaxBackwardParams p,
                 const __grid_constant__ DevicePlan plan, BitmapLayout layout) {
  __shared__ CollectRoom room;
  const unsigned long long num_queued = p.counters->num_queued;
  const EntmaxPairRule rule = EntmaxPairRule::of(p);
  for (unsigned long long i = blockIdx.x; i < num_queued; i += gridDim.x) {
    QueuedRow& queued = p.long_rows.queue[i];
    const RowAddress at = p.address_of(queued.row);
    const float lambda = *p.lambda.row<const float>(at.batch, at.head, at.query);
    // One thread asks for all: other CTAs add to the sum meanwhile. And the barrier ends the last
    // row. A list of a row without weights is empty.
    const bool has_room = __syncthreads_or(threadIdx.x == 0 && p.has_room(at.unit)) != 0;
    if (!has_room || !is_finite(lambda)) continue;
    QueuedRowWalk<G>{p, plan, layout, rule, at, room}.follow(queued, lambda);
  }
}

}  // namespace

void launch_entmax_backward_collect(const EntmaxBackwardParams& params, const DevicePlan& plan,
                                    BitmapLayout layout, DType dtype, bool is_in_vectors,
                                    int32_t num_processors, cudaStream_t stream) {
  if (params.num_rows() == 0) return;
  const int64_t most = std::max(num_processors, 1);  // the kernel loops over the rest
  const unsigned ctas = unsigned(std::min(most, params.num_rows()));
  const int32_t widest = std::max(params.sizes.head_dim, params.sizes.v_head_dim);
  with_row_gather(dtype, widest, is_in_vectors, [&](auto g) {
    collect_rows<decltype(g)><<<ctas, kCollectThreads, 0, stream>>>(params, plan, layout);
  });
  check_cuda(cudaGetLastError(), "launching the lists of long rows");
}

}  // namespace keyhole::device
