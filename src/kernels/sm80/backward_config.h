// src/kernels/sm80/backward_config.h
// The compile-time choices of the backward kernels: one named type per kernel, head_dim and amount
// of shared memory. Tiles are the plan's; a step is what a CTA processes at a time, a tile or a
// part of one. Sizes in bytes are for 16-bit elements.
#pragma once

#include <cstdint>

namespace keyhole::sm80 {

// The shared memory a CTA may use on every GPU from compute capability 8.0 on. 8.0 itself has 163
// KiB, 9.0 has 227.
inline constexpr int64_t kLeastBackwardShared = 99 * 1024;

// A CTA keeps a key tile and loops over queries. Warps are arranged in `key_warps` x 2. Each
// computes the scores of its keys against one half of the queries. Then the two warps of a row
// share dk and dv of their keys, half the columns each. For dq of a step, warps are arranged in
// `dq_warps` rows of queries.
//
// `Fine` configurations are for plans that need small tiles. Each warp does the same work as with
// the large tile, but q, dout and dq are loaded and stored twice as often for the same pairs.
//
// Registers set the sizes: dk and dv of a step (128 keys x 128 columns: 128 a thread) beside scores
// and their gradients (64 x 128 pairs: 64 a thread).
struct KeysDim64 {
  static constexpr int head_dim = 64;
  static constexpr int tile_q = 128, tile_k = 128;
  static constexpr int step_q = 128, step_k = 128;
  static constexpr int stages = 2;  // for q and dout: 162 KiB in all
  static constexpr int key_warps = 4, dq_warps = 4;
  static constexpr int ctas_per_sm = 1;
};
struct KeysDim64Small : KeysDim64 {  // 97 KiB
  static constexpr int step_q = 64;
  static constexpr int dq_warps = 2;
};
struct KeysDim64Fine : KeysDim64 {  // 65 KiB, half the warps
  static constexpr int tile_q = 64, tile_k = 64;
  static constexpr int step_q = 64, step_k = 64;
  static constexpr int key_warps = 2, dq_warps = 2;
  static constexpr int ctas_per_sm = 2;
};
struct KeysDim96 {  // 129 KiB
  static constexpr int head_dim = 96;
  static constexpr int tile_q = 64, tile_k = 128;
  static constexpr int step_q = 64, step_k = 128;
  static constexpr int stages = 2;
  static constexpr int key_warps = 4, dq_warps = 4;
  static constexpr int ctas_per_sm = 1;
};
struct KeysDim96Small : KeysDim96 {  // 89 KiB; twice the queries, each for half the keys
  static constexpr int step_k = 64;
};
struct KeysDim128 {  // 161 KiB
  static constexpr int head_dim = 128;
  static constexpr int tile_q = 64, tile_k = 128;
  static constexpr int step_q = 64, step_k = 128;
  static constexpr int stages = 2;
  static constexpr int key_warps = 4, dq_warps = 2;
  static constexpr int ctas_per_sm = 1;
};
struct KeysDim128Small : KeysDim128 {  // 96 KiB
  static constexpr int step_q = 32;
  static constexpr int stages = 1;
};
struct KeysDim128Fine : KeysDim128 {  // 113 KiB, half the warps: two CTAs just fit in 228 KiB
  static constexpr int tile_k = 64, step_k = 64;
  static constexpr int key_warps = 2;
  static constexpr int ctas_per_sm = 2;
};
struct KeysDim128FineSmall : KeysDim128Fine {  // 81 KiB
  static constexpr int stages = 1;
};
struct KeysDim192 {  // 161 KiB
  static constexpr int head_dim = 192;
  static constexpr int tile_q = 64, tile_k = 64;
  static constexpr int step_q = 64, step_k = 64;
  static constexpr int stages = 2;
  static constexpr int key_warps = 4, dq_warps = 2;
  static constexpr int ctas_per_sm = 1;
};
struct KeysDim192Small : KeysDim192 {  // 80 KiB
  static constexpr int step_q = 32;
  static constexpr int stages = 1;
};
struct KeysDim256 {  // 209 KiB
  static constexpr int head_dim = 256;
  static constexpr int tile_q = 64, tile_k = 64;
  static constexpr int step_q = 64, step_k = 64;
  static constexpr int stages = 2;
  static constexpr int key_warps = 4, dq_warps = 2;
  static constexpr int ctas_per_sm = 1;
};
struct KeysDim256Medium : KeysDim256 {  // 144 KiB
  static constexpr int stages = 1;
};
struct KeysDim256Small : KeysDim256 {  // 68 KiB and half the warps
  static constexpr int step_q = 32, step_k = 32;
  static constexpr int stages = 1;
  static constexpr int key_warps = 2;
};

// Derived from a configuration of the kernel above.
template <class C>
struct KeysShape {
  static constexpr int warps = 2 * C::key_warps, threads = 32 * warps;
  static constexpr int half_q = C::step_q / 2, half_d = C::head_dim / 2;
  static constexpr int warp_k = C::step_k / C::key_warps;
  // 16x8 blocks of a warp: scores, and dk or dv
  static constexpr int k_blocks = warp_k / 16, q_blocks = half_q / 8, d_blocks = half_d / 8;
  // dq: a warp's rows of queries and columns
  static constexpr int dq_across = warps / C::dq_warps;
  static constexpr int dq_rows = C::step_q / C::dq_warps, dq_columns = C::head_dim / dq_across;
  static constexpr int dq_row_blocks = dq_rows / 16, dq_blocks = dq_columns / 8;

  static_assert(warp_k % 16 == 0 && half_q % 16 == 0, "terms of a product come in sixteens");
  static_assert(half_d % 16 == 0 && dq_rows % 16 == 0 && dq_columns % 16 == 0);
  static_assert(C::tile_q % C::step_q == 0 && C::tile_k % C::step_k == 0);
  static_assert(C::tile_q % 64 == 0 && C::tile_k % 64 == 0, "bitmaps come in words of 64 columns");
  static_assert(threads >= 2 * C::step_q, "a thread copies at most one number of lse2 or delta");
};

// dq alone: a CTA keeps a query tile and loops over keys. Warps are arranged in `query_warps` x 2.
// Each has its queries and one half of the keys of every step; the two halves of dq are added at
// the end.
struct QueriesDim64 {  // 64 KiB
  static constexpr int head_dim = 64;
  static constexpr int tile_q = 128, tile_k = 128;
  static constexpr int step_k = 64;
  static constexpr int stages = 2;  // for k and v
  static constexpr int query_warps = 4;
};
struct QueriesDim64Fine : QueriesDim64 {  // 48 KiB
  static constexpr int tile_q = 64, tile_k = 64;
};
struct QueriesDim96 {  // 120 KiB
  static constexpr int head_dim = 96;
  static constexpr int tile_q = 64, tile_k = 128;
  static constexpr int step_k = 128;
  static constexpr int stages = 2;
  static constexpr int query_warps = 4;
};
struct QueriesDim96Small : QueriesDim96 {  // 72 KiB
  static constexpr int step_k = 64;
};
struct QueriesDim128 {  // 160 KiB
  static constexpr int head_dim = 128;
  static constexpr int tile_q = 64, tile_k = 128;
  static constexpr int step_k = 128;
  static constexpr int stages = 2;
  static constexpr int query_warps = 4;
};
struct QueriesDim128Small : QueriesDim128 {  // 96 KiB
  static constexpr int step_k = 64;
};
struct QueriesDim128Fine : QueriesDim128Small {  // 96 KiB
  static constexpr int tile_k = 64;
};
struct QueriesDim192 {  // 144 KiB
  static constexpr int head_dim = 192;
  static constexpr int tile_q = 64, tile_k = 64;
  static constexpr int step_k = 64;
  static constexpr int stages = 2;
  static constexpr int query_warps = 4;
};
struct QueriesDim192Small : QueriesDim192 {  // 96 KiB
  static constexpr int step_k = 32;
};
struct QueriesDim256 {  // 192 KiB
  static constexpr int head_dim = 256;
  static constexpr int tile_q = 64, tile_k = 64;
  static constexpr int step_k = 64;
  static constexpr int stages = 2;
  static constexpr int query_warps = 4;
};
struct QueriesDim256Medium : QueriesDim256 {  // 128 KiB
  static constexpr int step_k = 32;
};
struct QueriesDim256Small : QueriesDim256Medium {  // 96 KiB
  static constexpr int stages = 1;
};

}  // namespace keyhole::sm80
