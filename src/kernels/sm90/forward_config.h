// src/kernels/sm90/forward_config.h
// The compile-time choices of the forward kernel, one named type each: the profiler then says
// `forward<bf16, ForwardDim128>`.
//
// What decides, per SM of an H200 (measured; docs/gpu.md has the kernel):
// - A warpgroup multiplies 64 queries at a time. Its threads hold out (head_dim / 2 registers),
//   scores (tile_k / 2) and twice the weights (tile_k / 4 each: those being multiplied, and those
//   being made, whose scores may still be needed). Two consumer warpgroups may have 232
//   registers a thread, three 160; those of the producer keep 40 and 32.
// - Products of 64 x 64 read 128 bytes of shared memory a cycle, all there is; wider ones less.
// - Values are given back later than keys, after the exponentials: three stages of them, two of
//   keys. Two of queries hide the start of the next list behind the end of this one, and lend the
//   results of a list its queries' place on their way out.
// - Short lists live from a second CTA, which multiplies while the first one starts and ends.
// - Two warpgroups take turns at the first tile of a list, so that the products of one may be made
//   while the other takes exponentials; alone, a warpgroup takes those of a tile in half the time.
//   Turns at every tile keep it so through short lists; where they are not taken, they were not
//   measured.
#pragma once

#include <cstdint>

#include "plan/view.h"

namespace keyhole::sm90 {

// What a CTA must be given, whatever its configuration: all there is on a GPU of sm_90.
inline constexpr int64_t kForwardSharedBytes = 227 * 1024;

// Exponentials take as long as products here (1,536 cycles each for 192 x 128 pairs): three
// warpgroups hide each other's. 96 keys: 32 + 48 + 2 x 24 of 160 registers; 128 would spill.
struct ForwardDim64 {
  static constexpr int head_dim = 64, tile_q = 192, tile_k = 96;
  static constexpr int q_stages = 2, k_stages = 3, v_stages = 3;  // 120 KiB
  static constexpr bool ping_pong_at_every_tile = true;  // faster, as the exponentials decide
  static constexpr int ctas_per_sm = 1;
};
struct ForwardDim64Short {
  static constexpr int head_dim = 64, tile_q = 64, tile_k = 64;
  static constexpr int q_stages = 2, k_stages = 2, v_stages = 3;  // 56 KiB
  static constexpr bool ping_pong_at_every_tile = false;
  static constexpr int ctas_per_sm = 2;
};

// As head_dim 128, a quarter of the columns zeros that are not multiplied: their panel of 64
// columns is there because wgmma wants whole panels of one width.
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

// What follows from a configuration.
template <class C>
struct ForwardShape {
  static constexpr int consumers = C::tile_q / 64;  // consumer warpgroups
  static constexpr int threads = 128 * (1 + consumers);
  static constexpr int columns = (C::head_dim + 63) / 64 * 64;  // of a row in shared memory
  static constexpr int mask_words = (C::tile_k + 63) / 64;      // 32 bits each, of a thread

  // What a thread may use, in steps of 8: the SM's 65,536 registers are dealt out evenly at first.
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
