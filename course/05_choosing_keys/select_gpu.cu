// course/05_choosing_keys/select_gpu.cu
// The k best of each row of scores on a GPU: one CTA a row. Histograms of 11, 11 and 10 bits give
// the k-th score, as by_histogram in top_k.cpp does; then all that is above it is written in order.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/gpu.h"
#include "common/tensors.h"

using namespace keyhole;

namespace {

constexpr uint32_t kThreads = 512, kWarps = kThreads / 32, kBins = 2048;  // digits of 11 bits

// Integers in the order of the scores; 0 for NaN and -inf, which are never chosen.
__device__ uint32_t ordered(float score) {
  if (!(score > -INFINITY)) return 0;
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 + 0 is 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The sum of `value` over the threads before this one; `total` is that over all. All threads call.
__device__ uint32_t sum_before(uint32_t value, uint32_t& total) {
  __shared__ uint32_t of_warp[kWarps];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t sum = value;
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const uint32_t left = __shfl_up_sync(~0u, sum, distance);
    if (lane >= distance) sum += left;
  }
  __syncthreads();  // of_warp of the call before has been read
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  total = 0;
  for (unsigned w = 0; w < kWarps; ++w) {
    if (w == warp) sum += total;
    total += of_warp[w];
  }
  return sum - value;
}

// scores [rows, length]; lists [rows, k], k <= length: the chosen entries, ascending, then -1.
__global__ void __launch_bounds__(kThreads)
    choose_rows(const float* scores, uint32_t length, uint32_t k, int32_t* lists) {
  __shared__ uint32_t histogram[kBins], bin, above;
  const uint32_t thread = threadIdx.x;
  const float* const row = scores + size_t{blockIdx.x} * length;
  int32_t* const list = lists + size_t{blockIdx.x} * k;
  uint32_t threshold = 0, known = 0;  // the bits of the k-th score that are known; their mask
  uint32_t missing = k, total = 0;    // missing: how many of the k best have these bits
  for (int digit = 0; digit < 3; ++digit) {
    // The last digit has 10 bits. Its bins take 11, of which the highest is known already.
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0;
    for (uint32_t i = thread; i < kBins; i += kThreads) histogram[i] = 0;
    __syncthreads();
    for (uint32_t i = thread; i < length; i += kThreads) {
      const uint32_t key = ordered(row[i]);
      if ((key & known) == threshold) atomicAdd(&histogram[key >> shift & (kBins - 1)], 1u);
    }
    __syncthreads();
    // Each thread sums up four bins, the first thread the four highest. In one thread the count
    // from above reaches what is missing, and that thread finds the bin.
    uint32_t highest = kBins - 1 - 4 * thread, own = 0;
    for (uint32_t i = 0; i < 4; ++i) own += histogram[highest - i];
    uint32_t before = sum_before(own, total);
    if (before < missing && before + own >= missing) {
      while (before + histogram[highest] < missing) before += histogram[highest--];
      bin = highest;
      above = before;
    }
    __syncthreads();
    threshold |= bin << shift;
    known |= (kBins - 1) << shift;
    missing -= above;
  }

  // All above the threshold, and the first `missing` that equal it. One scan counts both: those
  // above in the low 16 bits, equal ones in the high bits.
  uint32_t num_above = 0, num_equal = 0;
  for (uint32_t first = 0; first < length; first += kThreads) {
    const uint32_t i = first + thread;
    const uint32_t key = i < length ? ordered(row[i]) : 0;
    const bool is_above = key > threshold, is_equal = key == threshold && key != 0;
    const uint32_t before = sum_before(uint32_t{is_above} | uint32_t{is_equal} << 16, total);
    const uint32_t equal_before = num_equal + (before >> 16);
    if (is_above || (is_equal && equal_before < missing)) {
      list[num_above + (before & 0xffff) + min(equal_before, missing)] = static_cast<int32_t>(i);
    }
    num_above += total & 0xffff;
    num_equal += total >> 16;
  }
  const uint32_t count = num_above + min(num_equal, missing);
  for (uint32_t i = count + thread; i < k; i += kThreads) list[i] = -1;
}

// Four kinds of rows: normal, mostly zero, all equal, and a few numbers among -inf and NaN.
float score_of(int row, int i, float normal) {
  if (row % 4 == 1 && normal < 2) return i % 2 == 0 ? 0.0f : -0.0f;
  if (row % 4 == 2) return 1;
  if (row % 4 == 3 && i % 300 != 7) return i % 2 == 0 ? -INFINITY : NAN;
  return normal;
}

}  // namespace

int main(int argc, char** argv) {
  course::need_gpu();
  const int length = std::max(argc > 1 ? std::atoi(argv[1]) : 32768, 16), k = length / 16;
  const int rows = 264;  // two for each SM of an H200
  std::vector<float> scores = course::random_values(size_t{rows} * length, 1);
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = score_of(int(i / length), int(i % length), scores[i]);
  }
  const course::GpuArray<float> on_gpu(scores);
  const course::GpuArray<int32_t> lists(size_t{rows} * k);
  GPU(cudaMemset(lists.data(), 0x7f, lists.size() * 4));  // poison, but not the bits of -1
  const double ms = course::gpu_milliseconds(
      [&] { choose_rows<<<rows, kThreads>>>(on_gpu.data(), length, k, lists.data()); });
  const std::vector<int32_t> chosen = lists.to_host();
  // On the host by the library, which top_k.cpp compares with a plain sort.
  std::vector<int32_t> expected(chosen.size());
  const SelectOptions options{.k = k};
  top_k(TensorView(scores.data(), DType::f32, {1, 1, rows, length}),
        {IndexView(expected.data(), {1, 1, rows, k})}, options);
  int64_t different = 0;
  for (size_t i = 0; i < chosen.size(); ++i) different += chosen[i] != expected[i];
  std::printf("%d rows, %d of %d scores each\n", rows, k, length);
  std::printf("entries that differ from the host: %lld\n", static_cast<long long>(different));
  std::printf("this kernel %.3f ms, %.0f GB/s of scores\n", ms, 4e-6 * rows * length / ms);
  try {
    TensorView all(on_gpu.data(), DType::f32, {1, 1, rows, length});
    IndexView into(lists.data(), {1, 1, rows, k});
    all.device = into.device = {Device::Kind::cuda, 0};
    GPU(cudaMemset(lists.data(), 0x7f, lists.size() * 4));
    const double its_ms = course::gpu_milliseconds([&] { top_k(all, {into}, options); });
    const bool is_same = lists.to_host() == expected;
    std::printf("keyhole     %.3f ms, the same lists: %s\n", its_ms, is_same ? "yes" : "no");
    if (!is_same) return 1;
  } catch (const Error&) {
    std::printf("keyhole     was built without kernels for this GPU\n");
  }
  return different == 0 ? 0 : 1;
}
