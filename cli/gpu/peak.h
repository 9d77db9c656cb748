// cli/gpu/peak.h
// What a GPU can do at most, measured now: bursts of nothing but products, and a copy of its own
// memory. A share of peak means nothing when the two were not taken in the same run.
#pragma once

#include "keyhole/tensor.h"

namespace keyhole::bench {

// Products of 16-bit numbers on tensor cores by mma.sync (m16n8k16, bf16 into fp32), from sm_80 on.
double measure_mma_gflops(const Device& device);
// The same by wgmma (m64n256k16), on GPUs of compute capability 9.0 alone, and in builds that have
// kernels of theirs (KEYHOLE_HAVE_SM90).
double measure_wgmma_gflops(const Device& device);
// Fused multiply-adds of fp32.
double measure_ffma_gflops(const Device& device);
// Bytes read plus bytes written by a copy far larger than the second-level cache, in 1e9 a second.
double measure_copy_gbps(const Device& device);

}  // namespace keyhole::bench
