// cli/bench/peak.cpp
// Always compiled with full optimisation (CMakeLists.txt): chains that are kept in memory measure
// the memory.
#include <algorithm>
#include <cstdint>

#include "base/parallel.h"
#include "cli/bench/machine.h"
#include "cli/bench/timing.h"

namespace keyhole::bench {
namespace {

// Each burst gives the number of floating-point operations it made; the sum keeps the compiler
// honest.
using Burst = double (*)(int64_t rounds, float* sum);

// Chains of fused multiply-adds on registers of kBytes, with the instructions of the function that
// this is inlined into. Sixteen chains (twelve where registers are few) hide the latency of two FMA
// units of four cycles, or of NEON's four, which add to the register that they then write. All
// loops over chains are unrolled, or the compiler keeps them in memory.
template <int kBytes, int kChains>
[[gnu::always_inline]] inline double burst(int64_t rounds, float* sum) {
  typedef float Register __attribute__((vector_size(kBytes)));
  Register chain[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) chain[i] = Register{} + float(i + 2);  // 1 would stay 1
  const Register factor = Register{} + 0.999f, term = Register{} + 0.001f;
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * factor + term;
  }
#pragma GCC unroll 16
  for (int i = 1; i < kChains; ++i) chain[0] += chain[i];
  *sum = chain[0][0];
  return double(rounds) * kChains * double(kBytes / sizeof(float)) * 2;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) double burst_avx512(int64_t rounds, float* sum) {
  return burst<64, 16>(rounds, sum);
}
__attribute__((target("avx2,fma"))) double burst_avx2(int64_t rounds, float* sum) {
  return burst<32, 12>(rounds, sum);
}
#endif

// NEON, which has 32 registers, and any other machine: as the compiler makes it.
double burst_plain(int64_t rounds, float* sum) {
#if defined(__aarch64__)
  return burst<16, 16>(rounds, sum);
#else
  return burst<16, 12>(rounds, sum);
#endif
}

Burst best_burst() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return burst_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return burst_avx2;
#endif
  return burst_plain;
}

}  // namespace

// The best of several bursts: a peak is what the machine can do, not what a neighbour left of it.
double measure_peak_gflops(int threads, bool is_cpu_time) {
  constexpr int kBursts = 8;
  const int workers = threads > 0 ? threads : max_threads();
  const Burst burst = best_burst();
  double best = 0;
  for (int i = 0; i < kBursts; ++i) {
    double flops = 0;
    const double begin = now_s(is_cpu_time);
    parallel_for(workers, workers, [&](int64_t item, int) {
      volatile float sink;
      float sum = 0;
      const double done = burst(/*rounds=*/2'000'000, &sum);
      sink = sum;
      (void)sink;
      if (item == 0) flops = done * workers;
    });
    const double seconds = now_s(is_cpu_time) - begin;
    best = std::max(best, flops / seconds * 1e-9);
  }
  return best;
}

}  // namespace keyhole::bench
