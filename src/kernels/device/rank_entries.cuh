// src/kernels/device/rank_entries.cuh
// Entries of a key in ascending order of their rows, by a warp: the rank of an entry is the number
// of those before it. For short lists that is less work than a sort, and no step waits for another.
#pragma once

#include "kernels/device/entmax_backward_params.h"

namespace keyhole::device {

inline constexpr int32_t kMostOfLane = int32_t(kMostOfWarp) / 32;

// Calls visit(rank, i) for number lane + 32 i of `count` <= kMostOfWarp; equal ones follow each
// other by index. numbers: in shared memory, room for kMostOfWarp, a multiple of 16 bytes. The
// whole warp calls.
template <class Visit>
__device__ __forceinline__ void rank_numbers(uint32_t* numbers, uint32_t count, Visit visit) {
  const uint32_t lane = threadIdx.x % 32;
  // What fills the last ones up is less than nothing.
  constexpr uint32_t kAtOnce = 16;
  if (lane < kAtOnce && count + lane < kMostOfWarp) numbers[count + lane] = ~0u;
  __syncwarp();
  uint32_t rank[kMostOfLane] = {}, own[kMostOfLane];
#pragma unroll
  for (int32_t i = 0; i < kMostOfLane; ++i) {
    const uint32_t index = lane + 32 * uint32_t(i);
    own[i] = index < count ? numbers[index] : 0;
  }
  for (uint32_t first = 0; first < count; first += kAtOnce) {
    uint4 fours[kAtOnce / 4];
#pragma unroll
    for (uint32_t f = 0; f < kAtOnce / 4; ++f) {
      fours[f] = *reinterpret_cast<const uint4*>(numbers + first + 4 * f);
    }
#pragma unroll
    for (int32_t i = 0; i < kMostOfLane; ++i) {
      if (32 * uint32_t(i) >= count) continue;  // the same for all lanes
#pragma unroll
      for (const uint4& four : fours) {
        rank[i] += uint32_t(four.x < own[i]) + uint32_t(four.y < own[i]) +
                   uint32_t(four.z < own[i]) + uint32_t(four.w < own[i]);
      }
    }
  }
  // Different numbers have the ranks 0 to count - 1, equal ones share the first of theirs.
  uint32_t sum = 0;
#pragma unroll
  for (int32_t i = 0; i < kMostOfLane; ++i) {
    if (lane + 32 * uint32_t(i) < count) sum += rank[i];
  }
  const bool has_equals = warp_sum(sum) != count * (count - 1) / 2;
#pragma unroll
  for (int32_t i = 0; i < kMostOfLane; ++i) {
    const uint32_t index = lane + 32 * uint32_t(i);
    if (index >= count) continue;
    if (has_equals) {
      for (uint32_t n = 0; n < index; ++n) rank[i] += uint32_t(numbers[n] == own[i]);
    }
    visit(rank[i], i);
  }
  __syncwarp();
}

}  // namespace keyhole::device
