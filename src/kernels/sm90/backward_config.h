// src/kernels/sm90/backward_config.h
// The compile-time choices of the backward kernel, one named type per head_dim. A CTA owns a key
// tile, 64 keys for each of its two consumer warpgroups, and loops over query tiles. Registers set
// the sizes. A thread holds dk and dv (64 keys x head_dim: head_dim registers in all), and scores
// and their gradients (64 keys x tile_q: tile_q in all), in whose place dq comes later. What is
// left holds columns of keys and values: products that find them in registers read less shared
// memory, which limits.
#pragma once

#include <cstdint>

namespace keyhole::sm90 {

inline constexpr int64_t kKeysSharedBytes = 227 * 1024;  // the maximum for one CTA

struct KeysDim64 {
  static constexpr int head_dim = 64;
  static constexpr int tile_q = 128, tile_k = 128;
  static constexpr int stages = 2;  // for q and dout: 211 KiB; three were slower
  static constexpr int key_steps = 0, value_steps = 2;  // of 16 columns, in registers
};
// Like head_dim 128, but a quarter of the columns are zeros and are not multiplied.
struct KeysDim96 {
  static constexpr int head_dim = 96;
  static constexpr int tile_q = 64, tile_k = 128;
  static constexpr int stages = 2;
  static constexpr int key_steps = 3, value_steps = 6;
};
struct KeysDim128 {
  static constexpr int head_dim = 128;
  static constexpr int tile_q = 64, tile_k = 128;
  static constexpr int stages = 2;  // 226 KiB
  static constexpr int key_steps = 0, value_steps = 4;
};

// Wide heads: dk and dv of 64 keys fill the registers of two warpgroups, one gradient each
// (wide_backward_shared.cuh). A thread of them holds head_dim / 2 sums and 32 products; one of the
// third warpgroup dq_columns / 2 sums. The numbers of registers of all four warpgroups add up to
// 512.
struct WideDim192 {
  static constexpr int head_dim = 192;
  static constexpr int tile_q = 64, tile_k = 64;
  static constexpr int stages = 2;                           // 178 KiB
  static constexpr int sum_columns = 192, dq_columns = 192;  // of a product
  static constexpr int sum_registers = 168, dq_registers = 136, producer_registers = 40;
};
struct WideDim256 {
  static constexpr int head_dim = 256;
  static constexpr int tile_q = 64, tile_k = 64;
  static constexpr int stages = 2;  // 226 KiB
  // ptxas refuses products of 256 columns in a kernel of 512 threads.
  static constexpr int sum_columns = 128, dq_columns = 64;
  static constexpr int sum_registers = 192, dq_registers = 88, producer_registers = 40;
};

}  // namespace keyhole::sm90
