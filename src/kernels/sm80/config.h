// src/kernels/sm80/config.h
// The compile-time choices of the forward kernel, one named type each: the profiler then says
// `forward<bf16, Dim128>`, and a new choice is one more type here.
//
// What decides, per SM: HMMA.16816 every 6.7 cycles in each of four partitions (H100; 8 on A100),
// shared memory 128 bytes a cycle, 65,536 registers, 16 exponentials a cycle.
// - A warp reads every key and value of a step, whatever its number of rows. With 32 rows it reads
//   half as much per product as with 16, which would be bound by shared memory. But out takes
//   head_dim registers at 32 rows, so that beyond head_dim 128 only 16 rows fit.
// - A step of 64 keys is one mask word a lane. Its scores are computed in slices. A slice costs
//   slice_keys * rows / 32 registers, and reads the queries once unless they stay in registers.
// - If registers are scarce, a slice is settled (probabilities packed, sums added) before the next
//   one begins. Otherwise the compiler may interleave them.
// - With two stages of keys and values, one tile loads while another is computed. With one stage,
//   the wait for values is hidden behind the first scores of a tile; the wait for keys is not
//   hidden.
#pragma once

#include <cstdint>

namespace keyhole::sm80 {

// The shared memory a CTA may use on compute capability 9.0, on 8.0, and on all others from 8.6 on.
inline constexpr int64_t kShared227KiB = 227 * 1024, kShared163KiB = 163 * 1024,
                         kShared99KiB = 99 * 1024;

struct Dim64 {
  static constexpr int head_dim = 64, tile_q = 128;
  static constexpr int tile_k = 128;  // two steps: half as many barriers as with 64
  static constexpr int warps = 4, rows_per_warp = 32;
  static constexpr int slice_keys = 32;                   // 32 registers
  static constexpr bool settles_slices = false;           // 232 registers; 211 with true
  static constexpr bool keeps_queries = true;             // 32 registers
  static constexpr int key_stages = 2, value_stages = 2;  // 80 KiB: two CTAs from 163 KiB on
  static constexpr int ctas_per_sm = 2;                   // 255 registers
};
struct Dim64Small : Dim64 {
  static constexpr int tile_q = 64, tile_k = 64;
  static constexpr int rows_per_warp = 16;
  static constexpr bool settles_slices = true;
  static constexpr int ctas_per_sm = 4;  // 40 KiB, 128 registers: short lists need many CTAs
};

struct Dim96 {
  static constexpr int head_dim = 96, tile_q = 128, tile_k = 64;
  static constexpr int warps = 4, rows_per_warp = 32;
  static constexpr int slice_keys = 64;  // 96 (out) + 64 + 32 (probabilities): 192 registers
  static constexpr bool settles_slices = true;
  static constexpr bool keeps_queries = false;
  static constexpr int key_stages = 2, value_stages = 2;  // 72 KiB
  static constexpr int ctas_per_sm = 2;
};

struct Dim128 {
  static constexpr int head_dim = 128, tile_q = 128, tile_k = 64;
  static constexpr int warps = 4, rows_per_warp = 32;
  static constexpr int slice_keys = 32;  // 128 (out) + 32 + 32 (probabilities): 192 registers
  static constexpr bool settles_slices = true;
  static constexpr bool keeps_queries = false;
  static constexpr int key_stages = 2, value_stages = 2;  // 96 KiB: two CTAs in 227 KiB, one in 99
  static constexpr int ctas_per_sm = 2;
};
struct Dim128For163KiB : Dim128 {
  static constexpr int value_stages = 1;  // 80 KiB: two CTAs
};
struct Dim128Small : Dim128 {
  static constexpr int tile_q = 64;
  static constexpr int rows_per_warp = 16;
  static constexpr bool keeps_queries = true;  // 32 registers
  static constexpr int value_stages = 1;       // 64 KiB: three CTAs in 227 KiB
  static constexpr int ctas_per_sm = 3;        // 168 registers
};
struct Dim128SmallFor99KiB : Dim128Small {
  static constexpr int key_stages = 1;  // 48 KiB: two CTAs
};

struct Dim192 {
  static constexpr int head_dim = 192, tile_q = 128, tile_k = 64;
  static constexpr int warps = 8, rows_per_warp = 16;
  static constexpr int slice_keys = 32;
  static constexpr bool settles_slices = true;
  static constexpr bool keeps_queries = true;             // 48 registers
  static constexpr int key_stages = 2, value_stages = 2;  // 144 KiB
  static constexpr int ctas_per_sm = 1;
};
struct Dim192For99KiB : Dim192 {
  static constexpr int key_stages = 1, value_stages = 1;  // 96 KiB
};

struct Dim256 {
  static constexpr int head_dim = 256, tile_q = 128, tile_k = 64;
  static constexpr int warps = 8, rows_per_warp = 16;
  static constexpr int slice_keys = 64;  // 128 (out) + 32 + 16 (probabilities): 176 registers
  static constexpr bool settles_slices = true;
  static constexpr bool keeps_queries = false;
  static constexpr int key_stages = 2, value_stages = 2;  // 192 KiB
  static constexpr int ctas_per_sm = 1;
};
struct Dim256For163KiB : Dim256 {
  static constexpr int value_stages = 1;  // 160 KiB
};
// Half the rows of a tile: two CTAs share each list.
struct Dim256For99KiB : Dim256 {
  static constexpr int warps = 4;
  static constexpr int key_stages = 1, value_stages = 1;  // 96 KiB
};

// Derived from a configuration.
template <class C>
struct Shape {
  static constexpr int step_keys = 64;                 // columns of one mask word of a lane
  static constexpr int steps = C::tile_k / step_keys;  // of a tile
  static constexpr int threads = 32 * C::warps;
  static constexpr int rows = C::warps * C::rows_per_warp;  // of a CTA
  static constexpr int ctas_per_tile = C::tile_q / rows;
  static constexpr int blocks = C::rows_per_warp / 16;  // matrix products one above the other
  static constexpr int key_slots = C::key_stages * steps, value_slots = C::value_stages * steps;
  static constexpr int row_bytes = 2 * C::head_dim;
  static constexpr int step_bytes = step_keys * row_bytes;
  static constexpr int shared_bytes = rows * row_bytes + (key_slots + value_slots) * step_bytes;

  static_assert(C::head_dim % 32 == 0 && C::tile_q % rows == 0 && C::tile_k % step_keys == 0);
  static_assert(C::rows_per_warp % 16 == 0, "a matrix product has 16 rows");
  static_assert(step_keys % C::slice_keys == 0 && C::slice_keys % 16 == 0);
  static_assert(C::key_stages <= 2 && C::value_stages <= C::key_stages,
                "slots are found by a mask; one stage of keys goes with one of values");
  static_assert(C::value_stages == 2 || steps == 1,
                "with two steps, values of the step before are in use while others arrive");
};

}  // namespace keyhole::sm80
