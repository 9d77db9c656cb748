// src/kernels/sm90/entmax_scan_config.h
// The compile-time choices of the scan (entmax_scan.cuh), one named type each.
//
// What decides, per SM of an H200 (measured; docs/performance-log.md): a scan is bound by the
// latency of its compares, not by products. Three consumer warps on each scheduler hide more of it
// than two. They have 160 registers a thread: the products of one key tile (tile_k / 2), the
// queries (head_dim / 4), and what a bound needs. Lists take most of the shared memory: 12 bytes x
// 32 lanes x 2 rows x list_entries of each warp.
#pragma once

#include "plan/view.h"

namespace keyhole::sm90 {

struct EntmaxScanDim64 {
  static constexpr int head_dim = 64, tile_k = 128, stages = 3;
  static constexpr int list_entries = 18;  // of a lane and a row, two products each
};
struct EntmaxScanDim128 {
  static constexpr int head_dim = 128, tile_k = 64, stages = 3;
  static constexpr int list_entries = 18;
};

inline constexpr int kScanRows = 192;              // of a query tile
inline constexpr int kScanWarps = kScanRows / 16;  // consumers: three warpgroups
inline constexpr int kScanProducerWarps = 4;
inline constexpr int kScanThreads = 32 * (kScanProducerWarps + kScanWarps);

template <class C>
constexpr TileShape scan_tile() {
  return {kScanRows, C::tile_k};
}

// Of a list of tiles, the look takes every n-th.
constexpr int look_stride(int num_tiles) { return num_tiles <= 64 ? 2 : num_tiles <= 128 ? 3 : 4; }

}  // namespace keyhole::sm90
