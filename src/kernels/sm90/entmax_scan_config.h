// src/kernels/sm90/entmax_scan_config.h
// The compile-time choices of the scan (entmax_scan.cuh), one named type each.
//
// What decides, per SM of an H200 (measured; docs/performance-log.md): a scan is bound by the
// latency of its compares, not by products. Three consumer warps on each scheduler hide more of it
// than two. They have 160 registers a thread: the products of one key tile (tile_k / 2), the
// queries (head_dim / 4), and what a bound needs. Lists take most of the shared memory.
#pragma once

#include "plan/view.h"

namespace keyhole::sm90 {

struct EntmaxScanDim64 {
  static constexpr int head_dim = 64, tile_k = 128, stages = 3;
};
struct EntmaxScanDim128 {
  static constexpr int head_dim = 128, tile_k = 64, stages = 3;
};

inline constexpr int kScanRows = 192;              // of a query tile
inline constexpr int kScanWarps = kScanRows / 16;  // consumers: a warpgroup has 64 rows
inline constexpr int kScanProducerWarps = 4;
inline constexpr int kScanThreads = 32 * (kScanProducerWarps + kScanWarps);
// Of a thread. A CTA redistributes what it was given at its start: 128 for each of its threads.
inline constexpr int kScanProducerRegisters = 24, kScanConsumerRegisters = 160;

template <class C>
constexpr TileShape scan_tile() {
  return {kScanRows, C::tile_k};
}

}  // namespace keyhole::sm90
