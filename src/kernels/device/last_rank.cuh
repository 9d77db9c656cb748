// src/kernels/device/last_rank.cuh
// Which keys top_k takes. A key has a rank: a number that is smaller the earlier the key is taken
// (base/entmax.h: larger scores first, then smaller keys). A warp or a CTA finds the last rank that
// is taken digit by digit: it counts how many keys have which digit, and goes on with those that
// share the digit of the one it looks for.
#pragma once

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

inline constexpr int32_t kRankDigits = 256;  // counts in shared memory, of those who search

// Who searches: the threads that share the counts.
struct SearchingWarp {
  static __device__ uint32_t thread() { return threadIdx.x % 32; }
  static __device__ uint32_t num_threads() { return 32; }
  static __device__ void wait() { __syncwarp(); }
};
struct SearchingCta {
  static __device__ uint32_t thread() { return threadIdx.x; }
  static __device__ uint32_t num_threads() { return blockDim.x; }
  static __device__ void wait() { __syncthreads(); }
};

__device__ __forceinline__ uint64_t rank_of(float score, int32_t key) {
  const uint32_t bits = __float_as_uint(score + 0.f);  // -0 becomes 0
  const uint32_t ascending = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << 32 | uint32_t(key);
}

// The digit of the element number `wanted` (1: the first), and how many have a smaller one.
struct FoundDigit {
  int32_t digit;  // -1: there are fewer elements
  uint32_t before, count;
};
__device__ inline FoundDigit find_digit(const uint32_t* counts, uint32_t wanted) {
  constexpr int32_t kOfLane = kRankDigits / 32;
  const int32_t lane = int32_t(threadIdx.x % 32);
  uint32_t own = 0;
#pragma unroll
  for (int32_t i = 0; i < kOfLane; ++i) own += counts[lane * kOfLane + i];
  uint32_t upto = own;
#pragma unroll
  for (int32_t step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += other;
  }
  const uint32_t here = __ballot_sync(~0u, upto >= wanted);
  if (here == 0) return {-1, 0, 0};
  const int32_t from = __ffs(int(here)) - 1;
  FoundDigit found = {lane * kOfLane, upto - own, 0};
  if (lane == from) {
    found.count = counts[found.digit];
    while (found.before + found.count < wanted) {
      found.before += found.count;
      found.count = counts[++found.digit];
    }
  }
  return {__shfl_sync(~0u, found.digit, from), __shfl_sync(~0u, found.before, from),
          __shfl_sync(~0u, found.count, from)};
}

// The last among the first top_k, the same for all who search. for_each calls its argument with (is
// there, rank), by whole warps; it is called once per digit, always with the same ranks.
template <class Searching, class ForEach>
__device__ LastRank find_last_rank(int64_t top_k, uint32_t* counts, ForEach for_each) {
  if (top_k >= INT32_MAX) return {};
  uint64_t prefix = 0;
  uint32_t wanted = uint32_t(top_k), equal = 1;
  for (int32_t shift = 56; shift >= 0; shift -= 8) {
    for (uint32_t i = Searching::thread(); i < kRankDigits; i += Searching::num_threads()) {
      counts[i] = 0;
    }
    Searching::wait();
    for_each([&](bool is_there, uint64_t rank) {
      // Twice: a shift by all bits is not defined.
      const bool is_near = (rank ^ prefix) >> shift >> 8 == 0;
      if (is_there && is_near) atomicAdd(counts + (rank >> shift & (kRankDigits - 1)), 1u);
    });
    Searching::wait();
    const FoundDigit found = find_digit(counts, wanted);
    Searching::wait();
    if (found.digit < 0) return {};
    wanted -= found.before;
    prefix |= uint64_t(found.digit) << shift;
    if (wanted == found.count) return {prefix | ((uint64_t{1} << shift) - 1), 1};
    equal = found.count;
  }
  return {prefix, float(wanted) / float(equal)};
}

}  // namespace keyhole::device
