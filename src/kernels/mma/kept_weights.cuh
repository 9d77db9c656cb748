// src/kernels/mma/kept_weights.cuh
// Weights of 16 rows by some keys, in memory between two launches: device::kPairBytes for each key,
// rows 2 i, 2 i + 1, 2 i + 8 and 2 i + 9 for i = 0..3 (device/span_lists.h).
#pragma once

#include "kernels/device/span_lists.h"
#include "kernels/mma/ptx.cuh"

namespace keyhole::mma {

// Keeps 16 rows by 16 keys of weights, packed, from a place on; `places` of them are there.
__device__ __forceinline__ void keep_weights(char* to, int32_t places,
                                             const uint32_t (&weights)[4]) {
  const uint32_t by_key[4] = {transposed_matrix(weights[0]), transposed_matrix(weights[1]),
                              transposed_matrix(weights[2]), transposed_matrix(weights[3])};
  const int32_t lane = int32_t(threadIdx.x % 32), place = lane / 4;
  uint2* const mine = reinterpret_cast<uint2*>(to + lane * 8);
  if (place < places) mine[0] = {by_key[0], by_key[1]};
  if (place + 8 < places) mine[8 * device::kPairBytes / 8] = {by_key[2], by_key[3]};
}

// This lane's part of 16 keys, to be turned by weights_of; 0 past the last place.
struct KeptWeights {
  uint2 low = {}, high = {};

  __device__ __forceinline__ void load(const char* from, int32_t places) {
    const int32_t lane = int32_t(threadIdx.x % 32), place = lane / 4;
    const uint2* const mine = reinterpret_cast<const uint2*>(from + lane * 8);
    low = place < places ? __ldg(mine) : uint2{};
    high = place + 8 < places ? __ldg(mine + 8 * device::kPairBytes / 8) : uint2{};
  }
};
// Rows by keys, as keep_weights was given them.
__device__ __forceinline__ void weights_of(const KeptWeights& kept, uint32_t (&weights)[4]) {
  weights[0] = transposed_matrix(kept.low.x), weights[1] = transposed_matrix(kept.low.y);
  weights[2] = transposed_matrix(kept.high.x), weights[3] = transposed_matrix(kept.high.y);
}

}  // namespace keyhole::mma
