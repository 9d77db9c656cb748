// course/01_attention/naive_gpu.cu [LENGTH]
// Attention by its definition on a GPU: three kernels, one for each step. The matrix of scores,
// later of weights, travels through global memory between them: written, read, written, read.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/gpu.h"
#include "common/tensors.h"

namespace {

constexpr int kHeadDim = 64, kHeads = 8;
constexpr int kThreads = 256;

// 1. weights[h][i][j] = scale * q[h][i] . k[h][j]. One thread for each pair.
__global__ void compute_scores(const float* q, const float* k, float* weights, int length) {
  const int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y, head = blockIdx.z;
  if (j >= length) return;
  const float* query = q + (std::size_t{1} * head * length + i) * kHeadDim;
  const float* key = k + (std::size_t{1} * head * length + j) * kHeadDim;
  float product = 0;
  for (int x = 0; x < kHeadDim; ++x) product += query[x] * key[x];
  weights[(std::size_t{1} * head * length + i) * length + j] = product * rsqrtf(kHeadDim);
}

// Combines one value of every thread of the CTA (thread block); all threads get the result.
template <class Combine>
__device__ float over_cta(float value, float* shared, Combine combine) {
  __syncthreads();  // the previous call may still be reading
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + half]);
    }
    __syncthreads();
  }
  return shared[0];
}

// 2. Softmax of each row, in place. One CTA for each row. The row stays in shared memory, so that
//    global memory is read once and written once.
__global__ void softmax_rows(float* weights, int length) {
  extern __shared__ float row[];
  __shared__ float shared[kThreads];
  float* global_row = weights + std::size_t{1} * blockIdx.x * length;
  float largest = -INFINITY, sum = 0;
  // Thread t keeps to the columns t, t + 256, ...: no other thread touches them, no barrier needed.
  for (int j = threadIdx.x; j < length; j += kThreads) {
    row[j] = global_row[j];
    largest = fmaxf(largest, row[j]);
  }
  largest = over_cta(largest, shared, [](float a, float b) { return fmaxf(a, b); });
  for (int j = threadIdx.x; j < length; j += kThreads) {
    row[j] = expf(row[j] - largest);
    sum += row[j];
  }
  sum = over_cta(sum, shared, [](float a, float b) { return a + b; });
  for (int j = threadIdx.x; j < length; j += kThreads) global_row[j] = row[j] / sum;
}

// 3. out[h][i] = sum over j of weights[h][i][j] * v[h][j]. One thread for each number of out.
__global__ void weigh_values(const float* weights, const float* v, float* out, int length) {
  const int x = threadIdx.x, i = blockIdx.x, head = blockIdx.y;
  const float* row = weights + (std::size_t{1} * head * length + i) * length;
  float sum = 0;
  for (int j = 0; j < length; ++j) {
    sum += row[j] * v[(std::size_t{1} * head * length + j) * kHeadDim + x];
  }
  out[(std::size_t{1} * head * length + i) * kHeadDim + x] = sum;
}

// Row i of a head by the definition, in fp64.
std::vector<double> exact_row(const float* q, const float* k, const float* v, int length, int i) {
  std::vector<double> weights(length), out(kHeadDim);
  double largest = -INFINITY, sum = 0;
  for (int j = 0; j < length; ++j) {
    double product = 0;
    for (int x = 0; x < kHeadDim; ++x) product += double{q[i * kHeadDim + x]} * k[j * kHeadDim + x];
    weights[j] = product / std::sqrt(double{kHeadDim});
    largest = std::fmax(largest, weights[j]);
  }
  for (double& weight : weights) {
    weight = std::exp(weight - largest);
    sum += weight;
  }
  for (int j = 0; j < length; ++j) {
    for (int x = 0; x < kHeadDim; ++x) out[x] += weights[j] / sum * v[j * kHeadDim + x];
  }
  return out;
}

}  // namespace

int main(int count, char** arguments) {
  const int length = count > 1 ? std::atoi(arguments[1]) : 2048;
  if (length < 1 || length > 8192) {
    std::printf("LENGTH is from 1 to 8192: a row has to fit into 32 KiB of shared memory\n");
    return 2;
  }
  course::need_gpu();
  const std::size_t numbers = std::size_t{1} * kHeads * length * kHeadDim;
  const std::size_t pairs = std::size_t{1} * kHeads * length * length;
  const std::vector<float> q = course::random_values(numbers, 1);
  const std::vector<float> k = course::random_values(numbers, 2);
  const std::vector<float> v = course::random_values(numbers, 3);
  course::GpuArray<float> gpu_q(q), gpu_k(k), gpu_v(v), weights(pairs), out(numbers);
  weights.poison();
  out.poison();

  const auto scores = [&] {
    const dim3 grid((length + kThreads - 1) / kThreads, length, kHeads);
    compute_scores<<<grid, kThreads>>>(gpu_q.data(), gpu_k.data(), weights.data(), length);
  };
  const auto softmax = [&] {
    softmax_rows<<<kHeads * length, kThreads, length * sizeof(float)>>>(weights.data(), length);
  };
  const auto output = [&] {
    const dim3 grid(length, kHeads);
    weigh_values<<<grid, kHeadDim>>>(weights.data(), gpu_v.data(), out.data(), length);
  };
  // What has to pass through global memory if every step reads and writes each number once.
  const double mb = 1e-6 * sizeof(float), matrix = mb * pairs, tensor = mb * numbers;
  std::printf("%d heads of %d tokens, head_dim %d\n", kHeads, length, kHeadDim);
  std::printf("%-8s %9s %9s %9s %9s\n", "kernel", "read_mb", "write_mb", "ms", "gb_per_s");
  const auto report = [](const char* name, double read, double written, double ms) {
    std::printf("%-8s %9.1f %9.1f %9.3f %9.0f\n", name, read, written, ms, (read + written) / ms);
  };
  report("scores", 2 * tensor, matrix, course::gpu_milliseconds(scores));
  // Timed by running again and again on its own result; below, both steps run once more in order.
  report("softmax", matrix, matrix, course::gpu_milliseconds(softmax));
  scores();
  softmax();
  report("output", matrix + tensor, tensor, course::gpu_milliseconds(output));
  std::printf("all      %9.1f MB of the matrix, %.1f MB of q, k, v and out\n", 4 * matrix,
              4 * tensor);

  const std::vector<float> result = out.to_host();
  double largest = 0;
  for (int i = 0; i < length; i += 97) {
    const std::size_t head = std::size_t(i % kHeads) * length * kHeadDim;
    const auto row = result.begin() + static_cast<std::ptrdiff_t>(head) + i * kHeadDim;
    largest = std::fmax(
        largest, course::largest_difference(std::vector<float>(row, row + kHeadDim),
                                            exact_row(&q[head], &k[head], &v[head], length, i)));
  }
  std::printf("\nlargest error: %.1e\n", largest);
}
