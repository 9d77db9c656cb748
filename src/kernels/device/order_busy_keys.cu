// src/kernels/device/order_busy_keys.cu
// A CTA takes one key. Its entries are dealt to buckets of neighbouring rows, at least as many as
// entries up to 8,192, and each bucket, which is short, is ordered by a warp. The work grows with
// the entries, not with their square: a key that every row lists is no exception.
#include <algorithm>

#include "kernels/device/check_cuda.h"
#include "kernels/device/order_busy_keys.h"
#include "kernels/device/rank_entries.cuh"

namespace keyhole::device {
namespace {

constexpr int32_t kOrderWarps = 8, kOrderThreads = 32 * kOrderWarps;
constexpr int32_t kFewestBucketBits = 8, kMostBucketBits = 13;

// Counts become the sums of all counts before them. `size` is a multiple of kOrderThreads.
__device__ void scan_in_place(uint32_t* counts, int32_t size) {
  __shared__ uint32_t of_warp[kOrderWarps];
  const int32_t thread = int32_t(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int32_t each = size / kOrderThreads;
  uint32_t* const own = counts + thread * each;
  uint32_t sum = 0;
  for (int32_t i = 0; i < each; ++i) sum += own[i];
  uint32_t upto = sum;
#pragma unroll
  for (int32_t step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += other;
  }
  if (lane == 31) of_warp[warp] = upto;
  __syncthreads();
  uint32_t before = upto - sum;
  for (int32_t w = 0; w < warp; ++w) before += of_warp[w];
  for (int32_t i = 0; i < each; ++i) {
    const uint32_t count = own[i];
    own[i] = before;
    before += count;
  }
  __syncthreads();
}

// entries[begin, end) have indices in `order` that are in no order yet.
__device__ void order_short_bucket(KeyEntry* entries, uint32_t begin, uint32_t end,
                                   uint32_t* places) {
  const uint32_t lane = threadIdx.x % 32, count = end - begin;
  uint32_t index[kMostOfLane];
#pragma unroll
  for (int32_t i = 0; i < kMostOfLane; ++i) {
    const uint32_t n = lane + 32 * uint32_t(i);
    index[i] = n < count ? entries[begin + n].order : 0;
    if (n < count) places[n] = entries[index[i]].place;
  }
  __syncwarp();
  rank_numbers(places, count,
               [&](uint32_t rank, int32_t i) { entries[begin + rank].order = index[i]; });
}

// Any length, in place: a bitonic network whose exchanges all point the same way, so that what lies
// past the end need not exist. Only for lists of millions of rows, or lists that repeat keys.
__device__ void order_long_bucket(KeyEntry* entries, uint32_t begin, uint32_t end) {
  const uint32_t lane = threadIdx.x % 32, count = end - begin;
  const auto exchange = [&](uint32_t low, uint32_t high) {
    if (high >= count) return;
    const uint32_t a = entries[begin + low].order, b = entries[begin + high].order;
    if (entries[a].place <= entries[b].place) return;
    entries[begin + low].order = b;
    entries[begin + high].order = a;
  };
  for (uint32_t size = 2; size / 2 < count; size *= 2) {
    for (uint32_t half = size / 2; half > 0; half /= 2) {
      // Pair n is (low, high) in its block of 2 * half; the first exchange of a size is mirrored.
      for (uint32_t n = lane; n < count; n += 32) {
        const uint32_t block = n / half * 2 * half, inside = n % half;
        if (block >= count) break;
        const bool is_first = half == size / 2;
        exchange(block + inside, is_first ? block + 2 * half - 1 - inside : block + half + inside);
      }
      __syncwarp();
    }
  }
}

__device__ void order_key(const EntmaxBackwardParams& p, const BusyItem& item, uint32_t* buckets,
                          uint32_t* places) {
  const int32_t thread = int32_t(threadIdx.x), warp = thread / 32;
  const int64_t at = item.unit * p.sizes.k_len + item.key;
  const uint32_t count = p.keys.count[at];
  KeyEntry* const entries =
      p.keys.entries + item.unit * p.entries_of_unit() + (p.keys.end[at] - count);
  const int32_t bits = min(max(32 - __clz(int(count)), kFewestBucketBits), kMostBucketBits);
  const int32_t num_buckets = 1 << bits, shift = max(p.keys.places.bits - bits, 0);

  for (int32_t i = thread; i < num_buckets; i += kOrderThreads) buckets[i] = 0;
  __syncthreads();
  for (uint32_t i = uint32_t(thread); i < count; i += kOrderThreads) {
    atomicAdd(buckets + (entries[i].place >> shift), 1u);
  }
  __syncthreads();
  scan_in_place(buckets, num_buckets);
  for (uint32_t i = uint32_t(thread); i < count; i += kOrderThreads) {
    const uint32_t to = atomicAdd(buckets + (entries[i].place >> shift), 1u);
    entries[to].order = i;
  }
  __syncthreads();  // a bucket is now the end of its entries
  for (int32_t bucket = warp; bucket < num_buckets; bucket += kOrderWarps) {
    const uint32_t begin = bucket == 0 ? 0 : buckets[bucket - 1], end = buckets[bucket];
    if (end - begin <= 1) continue;
    if (end - begin <= kMostOfWarp) {
      order_short_bucket(entries, begin, end, places);
    } else {
      order_long_bucket(entries, begin, end);
    }
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kOrderThreads)
    order_keys(const __grid_constant__ EntmaxBackwardParams p) {
  __shared__ uint32_t buckets[1 << kMostBucketBits];
  __shared__ alignas(16) uint32_t places[kOrderWarps][kMostOfWarp];
  const uint32_t num_busy = p.counters->num_busy;
  for (uint32_t i = blockIdx.x; i < num_busy; i += gridDim.x) {
    const BusyItem item = p.keys.busy[i];
    if (item.chunk == 0) order_key(p, item, buckets, places[threadIdx.x / 32]);
  }
}

}  // namespace

void order_busy_keys(const EntmaxBackwardParams& params, int32_t num_processors,
                     cudaStream_t stream) {
  order_keys<<<4 * unsigned(std::max(num_processors, 1)), kOrderThreads, 0, stream>>>(params);
  check_cuda(cudaGetLastError(), "launching the order of busy keys");
}

}  // namespace keyhole::device
