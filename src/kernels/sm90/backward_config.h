// src/kernels/sm90/backward_config.h
// The compile-time choices of the backward kernel, one named type per head_dim. A CTA owns a key
// tile, 64 keys for each of its two consumer warpgroups, and loops over query tiles. Registers set
// the sizes. A thread holds dk and dv (64 keys x head_dim: head_dim registers in all), scores and
// their gradients (64 keys x tile_q: tile_q in all), and dq of one step (32).
#pragma once

#include <cstdint>

namespace keyhole::sm90 {

inline constexpr int64_t kKeysSharedBytes = 227 * 1024;  // the maximum for one CTA

struct KeysDim64 {
  static constexpr int head_dim = 64;
  static constexpr int tile_q = 128, tile_k = 128;
  static constexpr int stages = 2;  // for q and dout: 211 KiB; three were slower
};
struct KeysDim128 {
  static constexpr int head_dim = 128;
  static constexpr int tile_q = 64, tile_k = 128;
  static constexpr int stages = 2;  // 226 KiB
};

}  // namespace keyhole::sm90
