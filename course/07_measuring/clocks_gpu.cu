// course/07_measuring/clocks_gpu.cu
// One kernel, timed at its first call, with and without waiting, after pauses, and after a second
// of the same. It also counts cycles: cycles over time are the clock, which changes with the load.
#include <mma.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <thread>

#include "common/gpu.h"

namespace {

namespace wmma = nvcuda::wmma;
using Clock = std::chrono::steady_clock;
constexpr int kThreads = 256, kSums = 4, kRounds = 4096;

struct Stamp {
  uint64_t cycles, nanoseconds;  // how long one CTA took
};

__device__ uint64_t nanoseconds_now() {  // the same on all multiprocessors, whatever their clock
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

using Right = wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major>;
using Left = wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major>;
using Sum = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

__device__ void add_products(Sum (&sums)[kSums], const Left& left, const Right (&right)[2]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) wmma::mma_sync(sums[i], left, right[i % 2], sums[i]);
}

// Each warp adds products of 16 x 16 matrices to four sums and subtracts them again: numbers that
// change cost power, and the sums are 0 after each round. The last additions give the result, one
// matrix for each warp: 2 * a . b0 + 2 * a . b1.
__global__ void __launch_bounds__(kThreads)
    multiply(const half* a, const half* b, float* total, Stamp* stamps) {
  const uint64_t begin = clock64(), begin_ns = nanoseconds_now();
  Left plus, minus;
  Right right[2];
  Sum sums[kSums];
  wmma::load_matrix_sync(plus, a, 16);
  wmma::load_matrix_sync(right[0], b, 16);
  wmma::load_matrix_sync(right[1], b + 256, 16);
  for (int e = 0; e < plus.num_elements; ++e) minus.x[e] = __hneg(plus.x[e]);
#pragma unroll
  for (int i = 0; i < kSums; ++i) wmma::fill_fragment(sums[i], 0.0f);
  for (int round = 0; round < kRounds; ++round) {
    add_products(sums, plus, right);
    add_products(sums, minus, right);
  }
  add_products(sums, plus, right);
#pragma unroll
  for (int i = 1; i < kSums; ++i) {
    for (int e = 0; e < sums[0].num_elements; ++e) sums[0].x[e] += sums[i].x[e];
  }
  const size_t warp = (size_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  wmma::store_matrix_sync(total + warp * 256, sums[0], 16, wmma::mem_row_major);
  __syncthreads();
  if (threadIdx.x == 0) stamps[blockIdx.x] = {clock64() - begin, nanoseconds_now() - begin_ns};
}

// Multiples of 1/256 from -1 to 1: fp32 holds every sum of 16 products exactly.
std::vector<half> numbers(size_t count, uint32_t seed) {
  std::vector<half> values;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t hash = (i + seed) * 2654435761u >> 16;
    values.push_back(__float2half(float(hash % 513) / 256 - 1));
  }
  return values;
}

double largest_error(const std::vector<half>& a, const std::vector<half>& b,
                     const std::vector<float>& total) {
  double largest = 0;
  for (size_t i = 0; i < total.size(); ++i) {
    double want = 0;
    for (size_t j = 0; j < 16; ++j) {
      const size_t right = j * 16 + i % 16;
      want += 2 * __half2float(a[i % 256 / 16 * 16 + j]) *
              (__half2float(b[right]) + __half2float(b[256 + right]));
    }
    if (std::isnan(total[i])) return NAN;  // was not written
    largest = std::max(largest, std::abs(total[i] - want));
  }
  return largest;
}

}  // namespace

int main() {
  course::need_gpu();
  cudaDeviceProp gpu;
  GPU(cudaGetDeviceProperties(&gpu, 0));
  const int ctas = 2 * gpu.multiProcessorCount, warps = ctas * kThreads / 32;
  const std::vector<half> a = numbers(256, 1), b = numbers(512, 1000);
  const course::GpuArray<half> gpu_a(a), gpu_b(b);
  course::GpuArray<float> total(size_t(warps) * 256);
  const course::GpuArray<Stamp> stamps(ctas);
  total.poison();
  const auto launch = [&] {
    multiply<<<ctas, kThreads>>>(gpu_a.data(), gpu_b.data(), total.data(), stamps.data());
    GPU(cudaGetLastError());
  };
  const auto by_host = [&](bool waits) {
    const Clock::time_point begin = Clock::now();
    launch();
    if (waits) GPU(cudaDeviceSynchronize());
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  };
  cudaEvent_t begin, end;
  GPU(cudaEventCreate(&begin));
  GPU(cudaEventCreate(&end));
  const auto by_events = [&](int calls) {  // the GPU notes events between kernels
    GPU(cudaEventRecord(begin));
    for (int i = 0; i < calls; ++i) launch();
    GPU(cudaEventRecord(end));
    GPU(cudaEventSynchronize(end));
    float ms = 0;
    GPU(cudaEventElapsedTime(&ms, begin, end));
    return ms / float(calls);
  };
  const auto line = [&](const char* when, double ms) {
    const Stamp last = stamps.to_host()[0];  // waits for the last call
    const double mhz = 1e3 * double(last.cycles) / double(last.nanoseconds);
    std::printf("%-18s  %9.4f  %7.0f\n", when, ms, mhz);
  };
  std::printf("%-18s  %9s  %7s\n", "when", "ms", "SM_MHz");
  line("first_by_host", by_host(true));
  const double error = largest_error(a, b, total.to_host());
  line("host_waits", by_host(true));
  line("host_does_not_wait", by_host(false));
  float paused = 1e30f, queued = 0;
  for (int i = 0; i < 9; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    paused = std::min(paused, by_events(1));
  }
  line("after_a_pause", paused);
  const Clock::time_point first = Clock::now();
  while (Clock::now() - first < std::chrono::seconds(1)) queued = by_events(20);
  line("after_a_second", queued);
  const double teraflops = 8192e-12 * kSums * (2 * kRounds + 1) * warps;  // 2 * 16 * 16 * 16 each
  std::printf("\nTFLOP/s: %.0f after a pause, %.0f after a second\nlargest error: %.1e\n",
              1e3 * teraflops / paused, 1e3 * teraflops / queued, error);
}
