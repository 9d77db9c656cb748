// src/kernels/mma/gather_config.h
// The compile-time choices of the gather kernels.
//
// A gathered key and its value are 4 * head_dim bytes, and only the rows of one list use them:
// copies from the L2 cache are the bottleneck. Per key of head_dim 128, SM and 16 rows:
//   copied to shared memory   512 bytes: 27 ns or 48 cycles at 2.5 TB/s over 132 SMs
//   matrix products           2 of m16n8k16: 3.4 cycles of the tensor cores
//   shared memory             512 bytes written, 512 read: 8 cycles
//   instructions              20 of a warp: 5 cycles of four schedulers
// Latency is the problem: 19 bytes a nanosecond per SM with a latency of one microsecond is 19 KiB
// in flight. So each warp keeps copies of up to 32 keys in flight (16 KiB, 12 warps an SM), has
// keys of its own and never waits for another warp.
#pragma once

#include <algorithm>

namespace keyhole::mma {

inline constexpr int kStepKeys = 16;  // keys per step of a warp: the depth of a matrix product

// kBlocks: blocks of 16 rows that share the copies of a key. kRowTensors: how many tensors have
// such rows (the queries; in the backward pass also the gradients of the output).
template <int kHeadDim, int kBlocks, int kRowTensors>
struct GatherShape {
  static constexpr int head_dim = kHeadDim, blocks = kBlocks;
  static constexpr int rows = 16 * kBlocks;
  static constexpr int warps =
      kHeadDim <= 128 ? 4 : 2;  // with more, four warps would not fit in 99 KiB
  static constexpr int threads = 32 * warps;
  static constexpr int slots = 2;  // for keys, and as many for values
  static constexpr int row_bytes = 2 * kHeadDim;
  static constexpr int rows_bytes = rows * row_bytes;
  static constexpr int slot_bytes = kStepKeys * row_bytes;
  // A warp's results wait in its slots to be combined. 8 extra floats a row avoid bank conflicts.
  static constexpr int result_pitch = kHeadDim + 8;
  static constexpr int result_bytes = rows * result_pitch * 4;
  static constexpr int warp_bytes = std::max(2 * slots * slot_bytes, result_bytes);
  static constexpr int warp_floats = warp_bytes / 4;
  static constexpr int shared_bytes = kRowTensors * rows_bytes + warps * warp_bytes;
};

// Plain calls have no softcap, their entries are single keys, and the keys of a head span less than
// 64 GiB. Kernels of their own spare them the branches and the arithmetic of all others.
enum class GatherCalls { plain, all };

// 34, 51 and 68 KiB of shared memory at 16 rows of head_dim 64, 96 and 128, then 54 and 72.
template <int kHeadDim, int kBlocks, GatherCalls kCalls>
struct GatherForwardShape : GatherShape<kHeadDim, kBlocks, 1> {
  static constexpr GatherCalls calls = kCalls;
  static constexpr bool keeps_rows = kBlocks * kHeadDim <= 192;  // in 48 registers
  static constexpr int ctas_per_sm = kBlocks == 2 ? 2 : 3;       // 255 and 168 registers
};
// 36, 54 and 72 KiB, then 60 and 80.
template <int kHeadDim, GatherCalls kCalls>
struct GatherBackwardShape : GatherShape<kHeadDim, 1, 2> {
  static constexpr GatherCalls calls = kCalls;
  static constexpr bool keeps_rows = false;
  static constexpr int ctas_per_sm = kHeadDim <= 192 ? 3 : 2;
};

// Two blocks double the accumulators of the forward pass: 128 registers at head_dim 128.
template <int kHeadDim>
inline constexpr int kMostGatherBlocks = kHeadDim <= 128 ? 2 : 1;

}  // namespace keyhole::mma
