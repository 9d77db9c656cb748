// src/kernels/sm90/forward_config.h
// The compile-time choices of the forward kernel, one named type each: the profiler then says
// `forward<bf16, ForwardDim128>`.
//
// What decides, per SM of an H200 (measured; docs/gpu.md describes the kernel):
// - A warpgroup multiplies 64 queries at a time. A thread holds out (head_dim / 2 registers),
//   scores (tile_k / 2) and two sets of weights (tile_k / 4 each): one that a product reads, one
//   that is being computed while its scores may still be needed. Two consumer warpgroups may have
//   232 registers a thread, three 160; the producer keeps 40 and 32.
// - Products of 64 x 64 read 128 bytes of shared memory a cycle, the full bandwidth; wider ones
//   read less.
// - Values are released later than keys, after the exponentials: three stages for values, two for
//   keys. Two stages of queries hide the start of the next list behind the end of this one. The
//   stage of a finished list is also the staging buffer of its output.
// - Short lists need a second CTA per SM, which multiplies while the first one starts or ends a
//   list.
// - Ping-pong: two warpgroups alternate at the first tile of a list, so that one multiplies while
//   the other computes exponentials. Alone, a warpgroup computes the exponentials of a tile in half
//   the time. Ping-pong at every tile keeps it so through short lists; the configurations without
//   it were not measured with it.
#pragma once

#include <cstdint>

#include "plan/view.h"

namespace keyhole::sm90 {

// Shared memory a CTA needs, whatever its configuration: all that an sm_90 GPU has.
inline constexpr int64_t kForwardSharedBytes = 227 * 1024;

// Exponentials take as long as products here (1,536 cycles each for 192 x 128 pairs), so three
// warpgroups hide each other's. 96 keys: 32 + 48 + 2 x 24 of 160 registers; 128 would spill.
struct ForwardDim64 {
  static constexpr int head_dim = 64, tile_q = 192, tile_k = 96;
  static constexpr int q_stages = 2, k_stages = 3, v_stages = 3;  // 120 KiB
  static constexpr bool ping_pong_at_every_tile = true;  // faster: exponentials are the bottleneck
  static constexpr int ctas_per_sm = 1;
};
struct ForwardDim64Short {
  static constexpr int head_dim = 64, tile_q = 64, tile_k = 64;
  static constexpr int q_stages = 2, k_stages = 2, v_stages = 3;  // 56 KiB
  static constexpr bool ping_pong_at_every_tile = false;
  static constexpr int ctas_per_sm = 2;
};

// Like head_dim 128, but a quarter of the columns are zeros and are not multiplied. They take space
// because wgmma needs whole panels of 64 columns.
struct ForwardDim96 {
  static constexpr int head_dim = 96, tile_q = 128, tile_k = 128;
  static constexpr int q_stages = 2, k_stages = 2, v_stages = 3;  // 224 KiB
  static constexpr bool ping_pong_at_every_tile = false;
  static constexpr int ctas_per_sm = 1;
};

struct ForwardDim128 {
  static constexpr int head_dim = 128, tile_q = 128;
  static constexpr int tile_k = 128;                              // 64 + 64 + 2 x 32 registers
  static constexpr int q_stages = 2, k_stages = 2, v_stages = 3;  // 224 of 227 KiB
  static constexpr bool ping_pong_at_every_tile = true;  // causal & window(1023): 2 % faster
  static constexpr int ctas_per_sm = 1;
};
struct ForwardDim128Short {
  static constexpr int head_dim = 128, tile_q = 64, tile_k = 64;
  static constexpr int q_stages = 2, k_stages = 2, v_stages = 3;  // 112 KiB: two CTAs in 228
  static constexpr bool ping_pong_at_every_tile = false;
  static constexpr int ctas_per_sm = 2;
};

struct ForwardDim192 {
  static constexpr int head_dim = 192, tile_q = 128;
  static constexpr int tile_k = 64;  // 96 + 32 + 2 x 16 registers; 128 keys would want 224
  static constexpr int q_stages = 2, k_stages = 2, v_stages = 3;  // 216 KiB
  static constexpr bool ping_pong_at_every_tile = false;
  static constexpr int ctas_per_sm = 1;
};

struct ForwardDim256 {
  static constexpr int head_dim = 256, tile_q = 128;
  static constexpr int tile_k = 64;                               // 128 + 32 + 2 x 16 registers
  static constexpr int q_stages = 1, k_stages = 2, v_stages = 3;  // 224 KiB
  static constexpr bool ping_pong_at_every_tile = false;
  static constexpr int ctas_per_sm = 1;
};

template <class C>
constexpr TileShape tile_of() {
  return {C::tile_q, C::tile_k};
}

// Derived from a configuration.
template <class C>
struct ForwardShape {
  static constexpr int consumers = C::tile_q / 64;  // consumer warpgroups
  static constexpr int threads = 128 * (1 + consumers);
  static constexpr int columns = (C::head_dim + 63) / 64 * 64;  // of a row in shared memory
  static constexpr int mask_words = (C::tile_k + 63) / 64;      // of 32 bits, per thread

  // Registers per thread at launch, a multiple of 8: the SM's 65,536 divided evenly.
  static constexpr int given = 65536 / (threads * C::ctas_per_sm) / 8 * 8;
  static constexpr int producer_registers = consumers == 3 ? 32 : 40;
  static constexpr int consumer_registers = consumers == 2 ? 232 : consumers == 3 ? 160 : 208;

  static_assert(C::tile_q % 64 == 0, "a warpgroup multiplies 64 queries");
  static_assert(C::tile_k % 32 == 0, "a word of a bitmap is 64 columns or half of them");
  static_assert(C::head_dim % 16 == 0, "a product sums up 16 terms");
  static_assert(C::q_stages >= 1 && C::k_stages >= 2 && C::v_stages >= 2,
                "with one stage, loading and multiplying cannot overlap");
  static_assert(producer_registers + consumers * consumer_registers <= given * (1 + consumers),
                "more registers than the SM has");
};

}  // namespace keyhole::sm90
