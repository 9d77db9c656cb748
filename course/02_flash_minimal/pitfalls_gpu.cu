// course/02_flash_minimal/pitfalls_gpu.cu [safe]
// Two pitfalls on a GPU. A race: sums of rows in shared memory, with barriers for the whole CTA and
// with none but those inside a warp.
// Bank conflicts: the same reads down a column, with rows of 32 and of 33 floats, timed.
// With "safe" the race is left out and the rest is small: for slow tools, and those that stop at
// it.
#include <cmath>
#include <cstdio>
#include <string_view>
#include <vector>

#include "common/gpu.h"
#include "common/tensors.h"

namespace {

constexpr int kThreads = 256;

// The sum of each row of kThreads numbers. One CTA for each row, one thread for each number.
// Without __syncthreads() a warp may add numbers that other warps have not written yet. Or the
// other warps happen to be faster: a race can go well a thousand times. __syncwarp() orders the
// lanes of a warp. It also keeps the compiler from moving reads before writes, which would be
// another error.
template <bool with_barriers>
__global__ void row_sums(const float* rows, float* sums) {
  __shared__ float shared[kThreads];
  const int thread = threadIdx.x;
  shared[thread] = rows[blockIdx.x * kThreads + thread];
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (with_barriers) {
      __syncthreads();
    } else {
      __syncwarp();
    }
    if (thread < half) shared[thread] += shared[thread + half];
  }
  if (thread == 0) sums[blockIdx.x] = shared[0];
}

// How many of the sums are wrong, over some launches.
template <bool with_barriers>
int wrong_sums(const std::vector<float>& rows, int launches) {
  const int count = static_cast<int>(rows.size()) / kThreads;
  course::GpuArray<float> gpu_rows(rows), gpu_sums(count);
  int wrong = 0;
  for (int launch = 0; launch < launches; ++launch) {
    gpu_sums.poison();
    row_sums<with_barriers><<<count, kThreads>>>(gpu_rows.data(), gpu_sums.data());
    GPU(cudaGetLastError());
    const std::vector<float> sums = gpu_sums.to_host();
    for (int i = 0; i < count; ++i) {
      double expected = 0;
      for (int j = 0; j < kThreads; ++j) expected += rows[i * kThreads + j];
      wrong += !(std::abs(sums[i] - expected) < 1e-3);  // NaN is wrong, too
    }
  }
  return wrong;
}

// Every lane of a warp reads column x of a row of its own, for all 32 columns, again and again. The
// sum is returned, so that the compiler cannot leave the reads out.
template <int stride>
__global__ void read_columns(const float* tile, float* sums, int rounds) {
  __shared__ float shared[32 * stride];
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x)
    shared[i / 32 * stride + i % 32] = tile[i];
  __syncthreads();
  float sum = 0;
  for (int round = 0; round < rounds; ++round) {
    // The columns come in another order each round: what was read cannot stay in registers.
    for (int x = 0; x < 32; ++x) sum += shared[lane * stride + ((x + round) & 31)];
  }
  sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Milliseconds; checks the sums.
template <int stride>
double time_columns(int rounds) {
  const int ctas = 1024;
  const std::vector<float> tile = course::random_values(32 * 32, 5);
  course::GpuArray<float> gpu_tile(tile), gpu_sums(ctas * kThreads);
  gpu_sums.poison();
  const double ms = course::gpu_milliseconds(
      [&] { read_columns<stride><<<ctas, kThreads>>>(gpu_tile.data(), gpu_sums.data(), rounds); });
  const std::vector<float> sums = gpu_sums.to_host();
  double largest = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    double expected = 0;
    for (int x = 0; x < 32; ++x) expected += tile[i % 32 * 32 + x];
    largest = std::fmax(largest, std::abs(sums[i] / rounds - expected));
  }
  if (!(largest < 1e-2)) std::printf("stride %d: wrong by %g\n", stride, largest);
  return ms;
}

}  // namespace

int main(int count, char** arguments) {
  course::need_gpu();
  const bool safe = count > 1 && std::string_view(arguments[1]) == "safe";
  const int rows = 4096, launches = safe ? 1 : 20, rounds = safe ? 4 : 256;
  const std::vector<float> values = course::random_values(std::size_t{rows} * kThreads, 6);
  std::printf("%d sums of %d numbers in shared memory\n", rows * launches, kThreads);
  std::printf("  with barriers:    %d wrong\n", wrong_sums<true>(values, launches));
  if (!safe) std::printf("  without barriers: %d wrong\n", wrong_sums<false>(values, launches));

  const double conflicts = time_columns<32>(rounds), padded = time_columns<33>(rounds);
  std::printf("reads down a column of shared memory\n");
  std::printf("  rows of 32 floats, 32 lanes in one bank: %.3f ms\n", conflicts);
  std::printf("  rows of 33 floats, each lane its own:    %.3f ms, %.1f times as fast\n", padded,
              conflicts / padded);
}
