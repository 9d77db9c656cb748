// src/kernels/device/entmax_forward_call.h
// The forward pass of entmax and top_k around a backend's own launches: scratch memory, the scan
// and the solution where a backend has them, then the rows that are left.
#pragma once

#include <cuda_runtime_api.h>

#include "base/entmax.h"
#include "kernels/contract.h"

namespace keyhole::device {

struct EntmaxParams;
struct RoundedRows;

// fp32: queues what fills `rounded`. For other dtypes it stays empty, here and below.
using LaunchRound = void (*)(const EntmaxParams& params, const RoundedRows& rounded,
                             cudaStream_t stream);
// Queues the scan of the only part of a plan: it fills params.candidates, whose counts are 0.
using LaunchScan = void (*)(const EntmaxParams& params, const RoundedRows& rounded,
                            const TileView& view, cudaStream_t stream);
// Queues the solution of all rows that the scan did not leave alone.
using LaunchSolve = void (*)(const EntmaxParams& params, const RoundedRows& rounded, DType dtype,
                             cudaStream_t stream);

// Queues the rows that the scan left alone where a query tile has many of them; without a scan, all
// rows. Rows that it has finished get the count 0.
using LaunchTileRows = void (*)(const EntmaxParams& params, const TileView& view, bool has_scan,
                                cudaStream_t stream);

// The launches of a backend; null: entmax_rows.h computes every row. They are used only for plans
// of one part of tiles, a scale above 0, and a top_k of at most kSupportKeys.
struct EntmaxLaunches {
  LaunchRound round = nullptr;  // given if and only if a scan is to take fp32
  LaunchScan scan = nullptr;
  LaunchSolve solve = nullptr;
  LaunchTileRows tiles = nullptr;  // null: such rows are left, like all others
  // Whether `tiles` is to take all rows, without a scan.
  bool (*prefers_tiles)(const EntmaxParams& params, const TileView& view) = nullptr;
};

inline constexpr int32_t kCandidatesPerRow = 96;

// Up to this alpha, most rows of many keys have more keys of weight than that.
inline constexpr double kLongRowsAlpha = 1.37;
constexpr bool has_long_rows(const EntmaxPower& power) {
  return !power.is_softmax() && power.bend <= kLongRowsAlpha - 1;
}

// Scratch memory of run_entmax_forward, without a scan and with one. Reads no device memory.
int64_t entmax_rows_workspace_bytes(const ForwardArgs& args);
int64_t entmax_scan_workspace_bytes(const ForwardArgs& args);

// Queues the whole forward pass on args.launch.stream.
void run_entmax_forward(const ForwardArgs& args, BitmapLayout bitmaps,
                        const EntmaxLaunches& launches = {});

}  // namespace keyhole::device
