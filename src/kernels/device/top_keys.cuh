// src/kernels/device/top_keys.cuh
// Which keys top_k takes: the first in the order of base/entmax.h. A warp or a CTA finds the last
// of them by digits, from the highest digit on: it counts how many keys have which digit, and goes
// on with those that share the digit of the one it looks for. Keys are only read, once per digit.
#pragma once

#include <climits>

#include "base/ordered_bits.h"
#include "kernels/device/rows.cuh"

namespace keyhole::device {

inline constexpr int32_t kDigits = 256;  // of a histogram in shared memory

// Threads that search together: all of them call, with the same arguments but for their elements.
struct WarpTeam {
  static __device__ int32_t rank() { return int32_t(threadIdx.x % 32); }
  static __device__ int32_t size() { return 32; }
  static __device__ void sync() { __syncwarp(); }
};
struct CtaTeam {
  static __device__ int32_t rank() { return int32_t(threadIdx.x); }
  static __device__ int32_t size() { return int32_t(blockDim.x); }
  static __device__ void sync() { __syncthreads(); }
};

// What a search has found: the element of a rank among those with these bits.
template <class Bits>
struct Ranked {
  bool exists;    // false: there are fewer elements
  Bits bits;      // of the element
  int32_t taken;  // how many of those that equal it are needed to reach the rank
  int32_t equal;  // how many there are
};

// One digit: the largest digit such that `rank` elements have it or a larger one.
struct RankedDigit {
  int32_t digit, above, count;  // above: elements with a larger digit; count: with this one
};
__device__ inline RankedDigit find_digit(const int32_t* histogram, int32_t rank) {
  constexpr int32_t kPerLane = kDigits / 32;
  const int32_t lane = int32_t(threadIdx.x % 32);
  int32_t own = 0;
#pragma unroll
  for (int32_t i = 0; i < kPerLane; ++i) own += histogram[lane * kPerLane + i];
  int32_t from_here = own;  // in this lane and those above
#pragma unroll
  for (int32_t step = 1; step < 32; step *= 2) {
    const int32_t further = __shfl_down_sync(~0u, from_here, step);
    if (lane + step < 32) from_here += further;
  }
  RankedDigit found = {-1, 0, 0};
  const bool is_here = from_here >= rank && from_here - own < rank;
  const uint32_t here = __ballot_sync(~0u, is_here);
  if (here == 0) return found;
  if (is_here) {
    found = {lane * kPerLane + kPerLane - 1, from_here - own, 0};
    found.count = histogram[found.digit];
    while (found.above + found.count < rank) {
      found.above += found.count;
      found.count = histogram[--found.digit];
    }
  }
  const int32_t from = __ffs(int(here)) - 1;
  found.digit = __shfl_sync(~0u, found.digit, from);
  found.above = __shfl_sync(~0u, found.above, from);
  found.count = __shfl_sync(~0u, found.count, from);
  return found;
}

// The element of rank `rank` (1: the largest) among the num_bits wide bits of elements. for_each
// calls its argument with (takes part, bits).
template <class Bits, class Team, class ForEach>
__device__ Ranked<Bits> find_rank(int32_t rank, int32_t num_bits, int32_t* histogram,
                                  ForEach for_each) {
  Ranked<Bits> found = {true, 0, rank, 0};
  for (int32_t shift = (num_bits - 1) / 8 * 8; shift >= 0; shift -= 8) {
    for (int32_t i = Team::rank(); i < kDigits; i += Team::size()) histogram[i] = 0;
    Team::sync();
    for_each([&](bool takes_part, Bits bits) {
      // Twice: a shift by all bits is not defined.
      const bool is_near = (bits ^ found.bits) >> shift >> 8 == 0;
      if (takes_part && is_near) atomicAdd(histogram + (bits >> shift & (kDigits - 1)), 1);
    });
    Team::sync();
    const RankedDigit digit = find_digit(histogram, found.taken);
    Team::sync();
    if (digit.digit < 0) return {false, 0, 0, 0};
    found.bits |= Bits(digit.digit) << shift;
    found.taken -= digit.above;
    found.equal = digit.count;
  }
  return found;
}

// The keys that are taken: those that rank before the last, and the last. Each warp of a CTA has
// its own, for its own keys: none of them may then be another warp's, too.
template <class Number>
struct TopKeys {
  bool is_all = true;
  Number last_score = 0;
  int32_t last_key = INT_MAX;
  int32_t copies = 0;  // how often the last key is taken: lists may name a key twice
  int32_t seen = 0;    // how often it was met in this pass

  // Whether the key of this lane is taken, in a pass over all keys. The whole warp calls.
  __device__ bool takes(bool is_there, Number score, int32_t key) {
    if (is_all) return is_there;
    const bool is_last = is_there && score == last_score && key == last_key;
    const uint32_t last = __ballot_sync(~0u, is_last);
    const int32_t before = seen + __popc(last & ((1u << (threadIdx.x % 32)) - 1));
    seen += __popc(last);
    if (is_last) return before < copies;
    return is_there && (score > last_score || (score == last_score && key < last_key));
  }
};

// for_each calls its argument with (is there, score, key); called once per digit, always with the
// same keys. No score is NaN.
template <class Number, class Team = WarpTeam, class ForEach>
__device__ __noinline__ TopKeys<Number> find_top_keys(int64_t top_k, int64_t k_len,
                                                      int32_t* histogram, ForEach for_each) {
  using Bits = typename OrderedBits<Number>::Bits;
  TopKeys<Number> top;
  if (top_k == 0 || top_k >= INT_MAX) return top;
  const auto last =
      find_rank<Bits, Team>(int32_t(top_k), 8 * sizeof(Bits), histogram, [&](auto visit) {
        for_each(
            [&](bool is_there, Number score, int32_t) { visit(is_there, ordered_bits(score)); });
      });
  if (!last.exists) return top;
  top.is_all = false;
  top.last_score = number_of_bits<Number>(last.bits);
  if (last.taken >= last.equal) return top;
  // Of keys with equal scores the smallest are taken.
  const int32_t largest_key = int32_t(k_len - 1), num_bits = 32 - __clz(largest_key | 1);
  const auto key = find_rank<uint32_t, Team>(last.taken, num_bits, histogram, [&](auto visit) {
    for_each([&](bool is_there, Number score, int32_t his_key) {
      visit(is_there && score == top.last_score, uint32_t(largest_key - his_key));
    });
  });
  top.last_key = largest_key - int32_t(key.bits);
  top.copies = key.taken;
  return top;
}

}  // namespace keyhole::device
