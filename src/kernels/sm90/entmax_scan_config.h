// src/kernels/sm90/entmax_scan_config.h
// The compile-time choices of the scan (entmax_scan.cuh), one named type each.
//
// What decides, per SM of an H200 (measured; docs/performance-log.md):
// - Scores of two key tiles are in registers at a time, 64 each a thread, beside the queries
//   (head_dim / 4): products of the second tile run while the first is compared.
// - Lists take most of the shared memory: 12 bytes x 32 lanes x 2 rows x list_entries of each warp.
// - A first look at every look_stride-th tile costs its share of a pass and makes the bound so good
//   that lists seldom fill up.
#pragma once

#include "plan/view.h"

namespace keyhole::sm90 {

struct EntmaxScanDim64 {
  static constexpr int head_dim = 64, stages = 3;
  static constexpr int list_entries = 28;  // of a lane and a row, two scores each
};
struct EntmaxScanDim128 {
  static constexpr int head_dim = 128, stages = 3;
  static constexpr int list_entries = 20;
};

inline constexpr int kScanRows = 128, kScanKeys = 128;  // of a tile
inline constexpr int kScanWarps = kScanRows / 16;       // consumers: two warpgroups
inline constexpr TileShape kScanTile = {kScanRows, kScanKeys};
inline constexpr int kLookStride = 2;

}  // namespace keyhole::sm90
