// course/07_measuring/table_gpu.cu
// The first table of count.cpp, measured: 12 heads, 2048 tokens, head_dim 64, fp16, and a batch of
// 16 (`table_gpu 4`: of 4). Attention in three kernels, in one kernel, and by the library.
#include <keyhole/keyhole.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "common/gpu.h"
#include "forms_gpu.h"

namespace {

using course::GpuArray, course::kDim, course::kLength, course::kScale, course::kWarps;
constexpr int kHeads = 12, kThreads = 32 * kWarps;

// Numbers that are nearly normal, each made from a hash of its index.
__global__ void fill(half* values, size_t count, uint64_t seed) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint64_t x = (i + seed * count) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  // Four uniform numbers of 16 bits: their sum has the mean 131070, the deviation 37837.
  const auto sum = float((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
  values[i] = __float2half((sum - 131070.0f) / 37837.0f);
}

struct Tensors {
  explicit Tensors(int heads) : q(of(heads)), k(of(heads)), v(of(heads)), out(of(heads)) {
    uint64_t seed = 0;
    for (const GpuArray<half>* one : {&q, &k, &v}) {
      fill<<<unsigned(one->size() / 256), 256>>>(one->data(), one->size(), ++seed);
    }
    GPU(cudaGetLastError());
  }
  static size_t of(int heads) { return size_t(heads) * kLength * kDim; }
  GpuArray<half> q, k, v, out;
};

// `rows` rows of a tensor, as fp64.
std::vector<double> rows_of(const GpuArray<half>& tensor, size_t first, size_t rows) {
  std::vector<half> copy(rows * kDim);
  GPU(cudaMemcpy(copy.data(), tensor.data() + first * kDim, copy.size() * sizeof(half),
                 cudaMemcpyDeviceToHost));
  std::vector<double> values(copy.size());
  std::transform(copy.begin(), copy.end(), values.begin(), [](half x) { return __half2float(x); });
  return values;
}

// The largest difference from fp64 in 32 rows, which are of different heads and places in a tile.
double largest_error(const Tensors& tensors, int heads) {
  double largest = 0;
  for (size_t sample = 0; sample < 32; ++sample) {
    const size_t head = sample * 29 % size_t(heads), row = sample * 67 % kLength;
    const auto q = rows_of(tensors.q, head * kLength + row, 1);
    const auto got = rows_of(tensors.out, head * kLength + row, 1);
    const auto k = rows_of(tensors.k, head * kLength, kLength);
    const auto v = rows_of(tensors.v, head * kLength, kLength);
    std::vector<double> want(kDim);
    double sum = 0;
    for (size_t key = 0; key < kLength; ++key) {
      double score = 0;
      for (size_t d = 0; d < kDim; ++d) score += q[d] * k[key * kDim + d] * double{kScale};
      sum += std::exp(score);  // no score of these numbers is large
      for (size_t d = 0; d < kDim; ++d) want[d] += std::exp(score) * v[key * kDim + d];
    }
    for (size_t d = 0; d < kDim; ++d) {
      const double difference = std::abs(got[d] - want[d] / sum);
      if (std::isnan(difference)) return difference;  // a row that was not written
      largest = std::max(largest, difference);
    }
  }
  return largest;
}

}  // namespace

int main(int argc, char** argv) {
  course::need_gpu();
  const int batch = argc > 1 ? std::max(1, std::atoi(argv[1])) : 16, heads = batch * kHeads;
  const size_t pairs = size_t(heads) * kLength * kLength, tensor_bytes = Tensors::of(heads) * 2;
  const size_t needed = pairs * 6 + tensor_bytes * 4;
  size_t room = 0, all = 0;
  GPU(cudaMemGetInfo(&room, &all));
  if (room < needed + (size_t{256} << 20)) {
    std::printf("this needs %zu MiB, and %zu are free: try a smaller batch\n", needed >> 20,
                room >> 20);
    return 77;
  }
  const Tensors tensors(heads);
  half *const q = tensors.q.data(), *const k = tensors.k.data(), *const v = tensors.v.data();
  half* const out = tensors.out.data();
  std::printf("batch %d, %d heads, %d tokens, head_dim %d, fp16\n\n", batch, kHeads, kLength, kDim);
  std::printf("%-8s  %8s  %10s  %8s  %9s  %7s  %13s\n", "way", "ms", "memory_MiB", "moved_GB",
              "TFLOP/s", "TB/s", "largest_error");
  const auto measure = [&](const char* way, size_t memory, size_t moved, const auto& run) {
    GPU(cudaMemset(out, 0xff, tensor_bytes));  // NaN, until somebody writes
    const double ms = course::gpu_milliseconds(run);
    std::printf("%-8s  %8.3f  %10.1f  %8.2f  %9.1f  %7.2f  %13.1e\n", way, ms,
                double(memory) / (1 << 20), double(moved) / 1e9,
                4.0 * double(pairs) * kDim / ms / 1e9, double(moved) / ms / 1e9,
                largest_error(tensors, heads));
  };
  const dim3 grid(kLength / 16 / kWarps, unsigned(heads));
  {
    // Scores are fp32, written and read; weights are fp16, written and read: 12 bytes a pair.
    const GpuArray<float> s(pairs);
    const GpuArray<half> p(pairs);
    measure("naive", needed, tensor_bytes * 4 + pairs * 12, [&] {
      course::scores<<<grid, kThreads>>>(q, k, s.data());
      course::softmax<<<unsigned(heads) * kLength / kWarps, kThreads>>>(s.data(), p.data());
      course::output<<<grid, kThreads>>>(p.data(), v, out);
    });
  }
  measure("fused", tensor_bytes * 4, tensor_bytes * 4,
          [&] { course::fused<<<grid, kThreads>>>(q, k, v, out); });

  const auto view = [&](half* data) {
    keyhole::TensorView tensor(data, keyhole::DType::f16, {batch, kHeads, kLength, kDim});
    tensor.device = {keyhole::Device::Kind::cuda, 0};
    return tensor;
  };
  try {
    const keyhole::Plan plan = keyhole::plan(
        keyhole::dense(), {.batch = batch, .heads = kHeads, .q_len = kLength, .k_len = kLength});
    const auto scratch =
        keyhole::forward_workspace_bytes(view(q), view(k), view(v), plan, view(out));
    measure("keyhole", tensor_bytes * 4 + size_t(scratch), tensor_bytes * 4,
            [&] { keyhole::attention_forward(view(q), view(k), view(v), plan, view(out)); });
    std::printf("\n%s\n", keyhole::kernel_for_forward(view(q), view(v), plan).c_str());
  } catch (const keyhole::Error& error) {  // a library that was built without kernels for GPUs
    std::printf("%s\n", error.what());
    return 77;
  }
}
