// src/kernels/device/entmax_backward_long.cu
// A CTA takes one row. Its warps take batches of 32 pairs in turn; their sums are added in order.
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_backward_long.h"
#include "kernels/device/entmax_pair.cuh"
#include "kernels/device/gather_rows.cuh"

namespace keyhole::device {
namespace {

constexpr int32_t kLongWarps = 8, kLongThreads = 32 * kLongWarps;
constexpr int32_t kLongColumns = 576;  // columns of a row

struct LongRoom {  // shared memory of the CTA
  float dq[kLongWarps][kLongColumns];
  double sum[kLongWarps], slopes[kLongWarps];
};

template <class G>
struct LongRow {
  using Storage = typename G::Storage;
  const EntmaxBackwardParams& p;
  const EntmaxPairRule& rule;
  const RowAddress& at;
  float lambda;
  const LongPair* pairs;  // [count]
  float* dvalue;          // [count]
  uint32_t count;
  LongRoom& room;

  static __device__ __forceinline__ int32_t warp() { return int32_t(threadIdx.x / 32); }

  // Calls visit(index, is inside, loads) for the batches of this warp. A lane has the same indices
  // every time: it reads only what it wrote itself.
  template <class Visit>
  __device__ __forceinline__ void for_each_batch(Visit visit) const {
    for (uint32_t first = uint32_t(warp()) * kGatherPlaces; first < count;
         first += kLongWarps * kGatherPlaces) {
      const uint32_t index = first + uint32_t(place_of_lane());
      visit(index, index < count, loads_for(index < count));
    }
  }

  // Stores dout . v of all pairs.
  __device__ float find_delta() const {
    const auto v = rows_of_head<Storage>(p.v, at.batch, p.sizes.kv_head_of(at.head));
    const Storage* const dout = p.dout.row<const Storage>(at.batch, at.head, at.query);
    double sum = 0, slopes = 0;  // many terms
    for_each_batch([&](uint32_t i, bool is_inside, int32_t loads) {
      const int32_t key = is_inside ? pairs[i].key : -1;
      const float product = G::dot(dout, v, p.sizes.v_head_dim, key, loads);
      if (!is_inside) return;
      dvalue[i] = product;
      const float slope = pairs[i].slope;
      if (slope == 0) return;
      sum += double(slope) * double(product);
      slopes += double(slope);
    });
    sum = warp_sum(sum);
    slopes = warp_sum(slopes);
    if (threadIdx.x % 32 == 0) {
      room.sum[warp()] = sum;
      room.slopes[warp()] = slopes;
    }
    __syncthreads();
    sum = 0;
    slopes = lambda == -INFINITY ? 0. : double(rule.sink_terms(p, at.head, lambda).slope);
#pragma unroll
    for (int32_t w = 0; w < kLongWarps; ++w) {
      sum += room.sum[w];
      slopes += room.slopes[w];
    }
    return delta_of_row(p, at.batch, at.head, at.query, float(sum), float(slopes));
  }

  // An entry for each key. What was dout . v becomes the gradient of the score.
  __device__ void give_entries(float delta) const {
    KeyEntry* const entries = p.keys.entries + at.unit * p.entries_of_unit();
    uint32_t* const end = p.keys.end + at.unit * p.sizes.k_len;
    const int32_t head_in_group = at.head % p.group();
    for_each_batch([&](uint32_t i, bool is_inside, int32_t) {
      if (!is_inside) return;
      const LongPair pair = pairs[i];
      const float dscore = dscore_of(pair.slope, dvalue[i], delta, rule.steepness(pair.product));
      dvalue[i] = dscore;
      // A slot has fewer bits than an index. Slots order only the entries of one row for one key,
      // if the row names it more than once. Those have the same weight and gradient, bit for bit:
      // which comes first, and whether their slots differ, does not matter.
      const int32_t slot = int32_t(i % kSupportKeys);
      entries[atomicAdd(end + pair.key, 1u)] = {p.keys.places.place(head_in_group, at.query, slot),
                                                pair.weight, dscore, 0};
    });
  }

  __device__ void sum_dq() const {
    const auto k = rows_of_head<Storage>(p.k, at.batch, p.sizes.kv_head_of(at.head));
    const int32_t cols = p.sizes.head_dim;
    G::for_each_chunk(cols, [&](int32_t first) {
      typename G::Columns columns = {};
      for_each_batch([&](uint32_t i, bool is_inside, int32_t loads) {
        G::add(columns, k, first, cols, is_inside ? pairs[i].key : -1, is_inside ? dvalue[i] : 0.f,
               loads);
      });
      typename G::OwnColumns own = {};
      G::share(columns, own);
      G::store_sums(room.dq[warp()], first, cols, own);
    });
    __syncthreads();
    Storage* const dq = p.dq.row<Storage>(at.batch, at.head, at.query);
    for (int32_t col = int32_t(threadIdx.x); col < cols; col += kLongThreads) {
      float sum = 0;
#pragma unroll
      for (int32_t w = 0; w < kLongWarps; ++w) sum += room.dq[w][col];
      dq[col] = stored_as<Storage>(sum);
    }
    __syncthreads();  // the next row uses the room
  }
};

template <class G>
__global__ void __launch_bounds__(kLongThreads, 2)
    follow_long_rows(const __grid_constant__ EntmaxBackwardParams p) {
  __shared__ LongRoom room;
  const unsigned long long num_queued = p.counters->num_queued;
  const EntmaxPairRule rule = EntmaxPairRule::of(p);
  for (unsigned long long i = blockIdx.x; i < num_queued; i += gridDim.x) {
    const QueuedRow queued = p.long_rows.queue[i];
    const RowAddress at = p.address_of(queued.row);
    const float lambda = *p.lambda.row<const float>(at.batch, at.head, at.query);
    const bool has_list = (is_finite(lambda) || lambda == -INFINITY) && p.has_room(at.unit);
    if (!has_list) {  // the same for all threads: nothing adds to the sums any more
      if (threadIdx.x == 0) p.counters->any_alone = 1;
      continue;
    }
    const int64_t first = at.unit * p.long_rows.pairs_of_unit + queued.begin;
    const LongRow<G> row{
        p,   rule, at, lambda, p.long_rows.pairs + first, p.long_rows.dvalue + first, queued.count,
        room};
    const float delta = row.find_delta();
    row.give_entries(delta);
    row.sum_dq();
    if (threadIdx.x != 0) continue;
    p.delta[queued.row] = delta;
    p.is_alone[queued.row] = 0;
  }
}

}  // namespace

void launch_entmax_backward_long(const EntmaxBackwardParams& params, DType dtype,
                                 bool is_in_vectors, int32_t num_processors, cudaStream_t stream) {
  if (params.num_rows() == 0) return;
  const int64_t most = int64_t{2} * std::max(num_processors, 1);  // the kernel loops over the rest
  const unsigned ctas = unsigned(std::min(most, params.num_rows()));
  const int32_t widest = std::max(params.sizes.head_dim, params.sizes.v_head_dim);
  KEYHOLE_ASSERT(widest <= kLongColumns, "entmax with head_dim ", widest);
  with_row_gather(dtype, widest, is_in_vectors, [&](auto g) {
    follow_long_rows<decltype(g)><<<ctas, kLongThreads, 0, stream>>>(params);
  });
  check_cuda(cudaGetLastError(), "launching the backward pass of entmax, long rows");
}

}  // namespace keyhole::device
