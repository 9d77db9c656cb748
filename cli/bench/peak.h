// cli/bench/peak.h
#pragma once

namespace keyhole::bench {

// The machine's peak for fp32 in GFLOP/s, measured now: fused multiply-adds on independent
// registers, on `threads` threads at once (0: all), with the widest instructions that are there. A
// share of peak means nothing when the two were not taken in the same run.
double measure_peak_gflops(int threads, bool is_cpu_time = false);

}  // namespace keyhole::bench
