// course/03_flash_fast/step1_sequence_gpu.cu [LENGTH]
// Step 1: one CTA for each tile of 32 queries and each head, so that all SMs have work. Inside a
// CTA everything is as plain as can be: all numbers are fp32 in shared memory, the output too, and
// every multiply-add reads both of its factors from there. That is what limits it.
#include "problem.h"

namespace {

using namespace course;

constexpr int kQueries = 32, kKeys = 32, kThreads = 256;
constexpr int kKeyStride = kHeadDim + 1;  // odd: the same column of 32 rows lies in 32 banks

struct Shared {
  float q[kQueries][kHeadDim];
  float kv[kKeys][kKeyStride];  // first keys, then values
  float out[kQueries][kHeadDim];
  float weights[kQueries][kKeys];
  float row_max[kQueries], row_sum[kQueries], rescale[kQueries];
};

// Copies a tile of keys or values, as fp32.
__device__ void load_tile(float (&to)[kKeys][kKeyStride], const bf16* from) {
  for (int i = threadIdx.x; i < kKeys * kHeadDim; i += kThreads) {
    to[i / kHeadDim][i % kHeadDim] = __bfloat162float(from[i]);
  }
}

__global__ void __launch_bounds__(kThreads) attend(Tensors t) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  // The tile is a dimension of the grid: this line is the whole step.
  const std::size_t first_query = std::size_t{blockIdx.x} * kQueries, head = blockIdx.y;
  const std::size_t first = head * t.length * kHeadDim;  // of this head
  const int thread = threadIdx.x;

  for (int i = thread; i < kQueries * kHeadDim; i += kThreads) {
    const float value = __bfloat162float(t.q[first + first_query * kHeadDim + i]);
    shared.q[i / kHeadDim][i % kHeadDim] = value * kScaleLog2;
    shared.out[i / kHeadDim][i % kHeadDim] = 0;
  }
  if (thread < kQueries) {
    shared.row_max[thread] = -INFINITY;
    shared.row_sum[thread] = 0;
  }

  for (int key = 0; key < t.length; key += kKeys) {
    load_tile(shared.kv, t.k + first + std::size_t(key) * kHeadDim);
    __syncthreads();
    for (int i = thread; i < kQueries * kKeys; i += kThreads) {  // scores: a warp has 32 keys
      const int row = i / kKeys, column = i % kKeys;
      float sum = 0;
      for (int d = 0; d < kHeadDim; ++d) sum += shared.q[row][d] * shared.kv[column][d];
      shared.weights[row][column] = sum;
    }
    __syncthreads();

    load_tile(shared.kv, t.v + first + std::size_t(key) * kHeadDim);
    // Online softmax: eight threads share a row, four neighbouring rows a warp.
    const int row = thread / 8, part = thread % 8;
    float top = shared.row_max[row], sum = 0;
    for (int j = part; j < kKeys; j += 8) top = fmaxf(top, shared.weights[row][j]);
    for (int step = 1; step < 8; step *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    for (int j = part; j < kKeys; j += 8) {
      shared.weights[row][j] = exp2f(shared.weights[row][j] - top);
      sum += shared.weights[row][j];
    }
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (part == 0) {
      const float rescale = exp2f(shared.row_max[row] - top);  // 0 for the first tile
      shared.rescale[row] = rescale;
      shared.row_sum[row] = shared.row_sum[row] * rescale + sum;
      shared.row_max[row] = top;
    }
    __syncthreads();

    for (int i = thread; i < kQueries * kHeadDim; i += kThreads) {  // a warp has 32 columns
      const int out_row = i / kHeadDim, d = i % kHeadDim;
      float value = shared.out[out_row][d] * shared.rescale[out_row];
      for (int j = 0; j < kKeys; ++j) value += shared.weights[out_row][j] * shared.kv[j][d];
      shared.out[out_row][d] = value;
    }
    __syncthreads();  // the next keys overwrite the values
  }

  for (int i = thread; i < kQueries * kHeadDim; i += kThreads) {
    const int row = i / kHeadDim;
    t.out[first + first_query * kHeadDim + i] =
        __float2bfloat16(shared.out[row][i % kHeadDim] / shared.row_sum[row]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  need_gpu();
  GPU(cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  return run_step("step 1 a CTA for each query tile", argc, argv, [](const Tensors& t) {
    attend<<<dim3(t.length / kQueries, kHeads), kThreads, sizeof(Shared)>>>(t);
  });
}
