// src/kernels/sm80/entmax_scan_config.h
// The compile-time choices of the scan (entmax_scan.cuh), one named type each.
//
// What decides, per SM of an H200, by count: a step of 16 rows by 32 keys of head_dim 64 takes 107
// cycles of the tensor cores of one of four partitions, 32 cycles of the shared memory that all
// four use, and about 120 instructions. So shared memory is the first to be busy, if enough warps
// hide latencies: two CTAs. Measured, half of the issue slots are. Nine warps have 96 registers
// a thread: the products of a step (16), the queries (head_dim / 4), and what a bound needs. Lists
// take most of the shared memory; with longer ones, entries are moved less often.
#pragma once

#include "plan/view.h"

namespace keyhole::sm80 {

inline constexpr int kScanRows = 128;              // of a query tile
inline constexpr int kScanWarps = kScanRows / 16;  // consumers; the producer is one warp more
inline constexpr int kScanThreads = 32 * (kScanWarps + 1);
inline constexpr int kScanCtasPerSm = 2;
inline constexpr int kScanStepKeys = 32;  // of which a warp has the products at a time

// Derived from a configuration; also what mma/gather_products.cuh wants to know.
template <int kHeadDim>
struct EntmaxScanShape {
  static constexpr int head_dim = kHeadDim, row_bytes = 2 * kHeadDim;
  static constexpr int tile_k = 64, tile_bytes = tile_k * row_bytes;
  static constexpr int blocks = 1;          // of 16 rows
  static constexpr bool keeps_rows = true;  // in registers
};

// 79, 77 KiB: two CTAs from 163 KiB on, one in 99.
struct EntmaxScanDim64 : EntmaxScanShape<64> {
  static constexpr int stages = 3, list_slots = 11;
};
struct EntmaxScanDim128 : EntmaxScanShape<128> {
  static constexpr int stages = 2, list_slots = 9;
};
// 112, 108 KiB: two CTAs.
struct EntmaxScanDim64For227KiB : EntmaxScanDim64 {
  static constexpr int stages = 4, list_slots = 16;
};
struct EntmaxScanDim128For227KiB : EntmaxScanDim128 {
  static constexpr int stages = 3, list_slots = 12;
};

template <class C>
constexpr TileShape scan_tile() {
  return {kScanRows, C::tile_k};
}

}  // namespace keyhole::sm80
