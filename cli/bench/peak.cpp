// cli/bench/peak.cpp
// Always compiled with full optimisation (CMakeLists.txt): chains that are kept in memory measure
// the memory.
#include "cli/bench/peak.h"

#include <algorithm>
#include <cstdint>

#include "base/parallel.h"
#include "cli/bench/timing.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace keyhole::bench {
namespace {

// Sixteen chains (twelve where registers are few) hide the latency of two FMA units of four cycles,
// or of NEON's four, which add to the register that they then write.
// All loops over chains are unrolled, or the compiler keeps them in memory. Each burst gives the
// number of floating-point operations it made; the sum keeps the compiler honest.
using Burst = double (*)(int64_t rounds, float* sum);

#if defined(__x86_64__)
__attribute__((target("avx512f"))) double burst_avx512(int64_t rounds, float* sum) {
  constexpr int kChains = 16;
  __m512 chain[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) chain[i] = _mm512_set1_ps(float(i));
  const __m512 factor = _mm512_set1_ps(0.999f), term = _mm512_set1_ps(0.001f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) chain[i] = _mm512_fmadd_ps(chain[i], factor, term);
  }
#pragma GCC unroll 16
  for (int i = 1; i < kChains; ++i) chain[0] = _mm512_add_ps(chain[0], chain[i]);
  float lanes[16];
  _mm512_storeu_ps(lanes, chain[0]);
  *sum = lanes[0];
  return double(rounds) * kChains * 16 * 2;
}

__attribute__((target("avx2,fma"))) double burst_avx2(int64_t rounds, float* sum) {
  constexpr int kChains = 12;
  __m256 chain[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) chain[i] = _mm256_set1_ps(float(i));
  const __m256 factor = _mm256_set1_ps(0.999f), term = _mm256_set1_ps(0.001f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) chain[i] = _mm256_fmadd_ps(chain[i], factor, term);
  }
#pragma GCC unroll 16
  for (int i = 1; i < kChains; ++i) chain[0] = _mm256_add_ps(chain[0], chain[i]);
  float lanes[8];
  _mm256_storeu_ps(lanes, chain[0]);
  *sum = lanes[0];
  return double(rounds) * kChains * 8 * 2;
}
#elif defined(__aarch64__)
double burst_neon(int64_t rounds, float* sum) {
  constexpr int kChains = 16;
  float32x4_t chain[kChains];
#pragma GCC unroll 16
  for (int i = 0; i < kChains; ++i) chain[i] = vdupq_n_f32(float(i));
  const float32x4_t factor = vdupq_n_f32(0.999f), term = vdupq_n_f32(0.001f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) chain[i] = vfmaq_f32(chain[i], factor, term);
  }
#pragma GCC unroll 16
  for (int i = 1; i < kChains; ++i) chain[0] = vaddq_f32(chain[0], chain[i]);
  *sum = vgetq_lane_f32(chain[0], 0);
  return double(rounds) * kChains * 4 * 2;
}
#endif

// Any other machine: multiply and add as the compiler makes them.
double burst_plain(int64_t rounds, float* sum) {
  constexpr int kChains = 32;
  float chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = float(i);
  for (int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kChains; ++i) chain[i] = chain[i] * 0.999f + 0.001f;
  }
  for (int i = 1; i < kChains; ++i) chain[0] += chain[i];
  *sum = chain[0];
  return double(rounds) * kChains * 2;
}

Burst best_burst() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return burst_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return burst_avx2;
#elif defined(__aarch64__)
  return burst_neon;
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
