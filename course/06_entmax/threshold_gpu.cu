// course/06_entmax/threshold_gpu.cu
// A warp finds the threshold of a row for alpha = 1.5. The row is read once and stays in registers,
// so a pass over it costs arithmetic, and five exchanges between the lanes for each sum.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "06_entmax/entmax.h"
#include "common/gpu.h"
#include "common/tensors.h"

namespace {

constexpr int kScores = 1024, kPerLane = kScores / 32, kWarps = 4, kMostPasses = 40;
constexpr unsigned kAllLanes = 0xffffffff;

enum class Method { bisection, from_maximum, from_lane_maxima };

// After five exchanges, at distance 16, 8, 4, 2, 1, every lane has the result.
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}
__device__ float warp_max(float value) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Newton's step on the square root of P, the sum of x^2; U is the sum of x.
__device__ float newton_step(float weight, float slope) { return (weight - sqrtf(weight)) / slope; }

template <Method method>
__global__ void find_thresholds(const float* scores, int rows, float* thresholds, int* passes) {
  const int row = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;  // the same for all lanes of a warp

  float z[kPerLane];  // (alpha - 1) * score
  float lane_max = -INFINITY;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    z[i] = 0.5f * scores[static_cast<size_t>(row) * kScores + i * 32 + lane];  // coalesced
    lane_max = fmaxf(lane_max, z[i]);
  }
  const float largest = warp_max(lane_max);
  // With the maximum at 0 the threshold is between -1 and 0, whatever the scores are: no digits
  // lost.
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) z[i] -= largest;
  lane_max -= largest;

  float tau = -1;
  float low = -1, high = -1 / sqrtf(float{kScores});
  if (method == Method::from_lane_maxima) {
    // The threshold of the 32 maxima is a lower bound of the row's. One number a lane: a step here
    // costs a 32nd of a pass, besides the exchanges.
    for (int step = 0; step < 5; ++step) {
      const float x = fmaxf(lane_max - tau, 0.0f);
      tau += newton_step(warp_sum(x * x), warp_sum(x));
    }
  }
  int pass = 0;
  while (pass < kMostPasses) {
    float weight = 0, slope = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float x = fmaxf(z[i] - tau, 0.0f);
      weight += x * x;
      slope += x;
    }
    weight = warp_sum(weight);
    ++pass;
    if (fabsf(weight - 1) <= 2e-6f) break;  // all lanes have the same weight: they leave together
    if (method == Method::bisection) {
      (weight > 1 ? low : high) = tau;
      tau = 0.5f * (low + high);
    } else {
      tau += newton_step(weight, warp_sum(slope));
    }
  }
  if (lane == 0) {
    thresholds[row] = tau + largest;
    passes[row] = pass;
  }
}

// Runs one method and prints its line; returns its largest error.
template <Method method>
double report(const char* name, const course::GpuArray<float>& scores,
              const std::vector<double>& expected) {
  const int rows = static_cast<int>(expected.size());
  course::GpuArray<float> thresholds(expected.size());
  course::GpuArray<int> passes(expected.size());
  thresholds.poison();
  passes.poison();
  const double milliseconds = course::gpu_milliseconds([&] {
    find_thresholds<method><<<(rows + kWarps - 1) / kWarps, 32 * kWarps>>>(
        scores.data(), rows, thresholds.data(), passes.data());
  });
  const std::vector<int> counts = passes.to_host();
  double sum = 0;
  for (const int count : counts) sum += count;
  const double error = course::largest_difference(thresholds.to_host(), expected);
  std::printf("%s %.1f %d %.4f %.0f %.1e\n", name, sum / rows,
              *std::max_element(counts.begin(), counts.end()), milliseconds,
              static_cast<double>(scores.size()) * sizeof(float) / milliseconds * 1e-6, error);
  return error;
}

}  // namespace

int main(int argc, char** argv) {
  course::need_gpu();
  const std::size_t rows = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 4096;
  const std::vector<float> scores = course::random_values(rows * kScores, 6);
  std::vector<double> expected(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    std::vector<double> z(scores.begin() + static_cast<std::ptrdiff_t>(row * kScores),
                          scores.begin() + static_cast<std::ptrdiff_t>((row + 1) * kScores));
    for (double& value : z) value *= 0.5;
    expected[row] = course::threshold(z, 2);
  }

  const course::GpuArray<float> on_gpu(scores);
  std::printf("entmax(1.5) of %zu rows of %d normal scores, one warp a row\n", rows, kScores);
  std::printf("method mean_passes most_passes ms GB_per_s error\n");
  double error = 0;
  for (const double one :
       {report<Method::bisection>("bisection", on_gpu, expected),
        report<Method::from_maximum>("newton_from_maximum", on_gpu, expected),
        report<Method::from_lane_maxima>("newton_from_lane_maxima", on_gpu, expected)}) {
    if (one > error || std::isnan(one)) error = one;
  }
  std::printf("largest error %.1e\n", error);
  return error < 2e-6 ? 0 : 1;
}
