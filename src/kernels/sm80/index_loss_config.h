// src/kernels/sm80/index_loss_config.h
// The compile-time choices of the index loss on tensor cores. Eight warps multiply the heads of one
// query by 128 of its keys; per key of 128 heads and 64 columns, on an H200's SM:
//   matrix products    8,192 multiplications: 6.4 cycles at the rate of mma.sync
//   shared memory      768 bytes read: 6 cycles
//   copies             128 bytes of the key, 3.5 cycles out of the L2 cache; as many of the heads,
//                      unless those of all tiles are kept in shared memory
// So the heads are kept where they fit.
#pragma once

#include <algorithm>

#include "kernels/sm80/index_loss_walk.h"

namespace keyhole::sm80 {

template <int kHeads>
struct LossShape {
  static constexpr int heads = kHeads;  // of a tile
  static constexpr int warps = 8, threads = 32 * warps;
  static constexpr int head_warps = kHeads / kWarpHeads, key_warps = warps / head_warps;
  static constexpr int warp_keys = kLossKeys / key_warps;
  static constexpr int eights = warp_keys / 8;  // columns of a product
  static constexpr int row_bytes = 2 * kLossColumns;
  static constexpr int keys_bytes = kLossKeys * row_bytes, heads_bytes = kHeads * row_bytes;
  static_assert(kHeads % kWarpHeads == 0 && warps % head_warps == 0 && eights % 2 == 0);
};
inline constexpr int kFewHeads = 32, kManyHeads = 128;
// The heads of a call may be more than those of a tile, by as many as have room for their numbers.
inline constexpr int kMostLossHeads = 2048;
// Columns of an indexer that has gradients.
inline constexpr int kMostLossColumns = 256;

// How a launch uses the shared memory of a CTA: the kept heads, some stages, a number for each
// head.
struct LossMemory {
  int32_t kept_bytes = 0;  // of the heads of all tiles; 0: each stage has those of its tile
  int32_t stages = 2, stage_bytes = 0;
  int32_t bytes = 0;
};
// Besides what a kernel declares.
inline constexpr int kLossStaticBytes = 8 * 1024;

template <class S>
LossMemory loss_memory(const LossHeads& of, int32_t groups, int64_t available_bytes) {
  const int64_t numbers = 4 * (int64_t{of.heads} + of.target_heads);
  const auto with = [&](int64_t kept, int stages) {
    const int64_t stage = S::keys_bytes + (kept == 0 ? S::heads_bytes : 0);
    return LossMemory{int32_t(kept), stages, int32_t(stage),
                      int32_t(kept + stages * stage + numbers)};
  };
  int64_t kept = 0;
  for (int32_t group = 0; group < groups; ++group) {
    kept = std::max(kept, places_of_heads(of, S::heads, group) * S::row_bytes);
  }
  const int64_t room = available_bytes - kLossStaticBytes;
  for (const int stages : {3, 2}) {
    const bool fits = kept + stages * int64_t{S::keys_bytes} + numbers <= room;
    if (fits) return with(kept, stages);
  }
  for (const int stages : {3, 2}) {
    const LossMemory memory = with(0, stages);
    if (memory.bytes <= room) return memory;
  }
  return with(0, 2);
}

}  // namespace keyhole::sm80
