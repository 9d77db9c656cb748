// course/03_flash_fast/step3_tensor_cores_gpu.cu [LENGTH]
// Needs sm_80.
// Step 3: both products by tensor cores (mma.sync), from bf16 in shared memory. A warp owns 32
// queries, two blocks of 16 rows: each fragment of keys or values that it loads is used twice.
// Tiles lie in shared memory row by row, as in global memory. That turns out to be a mistake: the
// eight rows of a fragment are 256 bytes apart, so all of them are in the same banks.
#include "ampere.h"
#include "softmax.h"

namespace {

using namespace course;

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kQueries = 32 * kWarps, kKeys = 64;

struct Shared {
  bf16 q[kQueries][kHeadDim];
  bf16 k[kKeys][kHeadDim], v[kKeys][kHeadDim];
};

// Copies a tile 16 bytes at a time: through registers, so each thread waits for what it has read.
template <int kRows>
__device__ void load_tile(bf16 (&to)[kRows][kHeadDim], const bf16* from) {
#pragma unroll 8
  for (int i = 0; i < kRows * kHeadDim / 8; i += kThreads) {
    const int at = i + int(threadIdx.x);
    reinterpret_cast<uint4*>(to)[at] = reinterpret_cast<const uint4*>(from)[at];
  }
}

__global__ void __launch_bounds__(kThreads, 2) attend(Tensors t) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const std::size_t first_query = std::size_t{blockIdx.x} * kQueries, head = blockIdx.y;
  const std::size_t first = head * t.length * kHeadDim;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  float out[2][kHeadDim / 2] = {};  // of rows 32 * warp + 16 * m
  Rows rows[2];
  load_tile(shared.q, t.q + first + first_query * kHeadDim);

  for (int key = 0; key < t.length; key += kKeys) {
    load_tile(shared.k, t.k + first + std::size_t(key) * kHeadDim);
    load_tile(shared.v, t.v + first + std::size_t(key) * kHeadDim);
    __syncthreads();

    // scores = q . k', 16 terms at a time. Keys are the columns of the right operand, and a key is
    // a row of memory: a fragment is read as it lies there.
    float scores[2][kKeys / 2] = {};
#pragma unroll 1  // a loop: with all of it unrolled, registers run out
    for (int d = 0; d < kHeadDim; d += 16) {
      std::uint32_t queries[2][4], keys[4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const int row = 32 * warp + 16 * m + lane % 16;
        load_matrices(queries[m], smem_address(&shared.q[row][d + lane / 16 * 8]));
      }
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        const int row = n + lane / 16 * 8 + lane % 8;
        load_matrices(keys, smem_address(&shared.k[row][d + lane / 8 % 2 * 8]));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(scores[m], n / 8, queries[m], keys[0], keys[1]);
          multiply_add(scores[m], n / 8 + 1, queries[m], keys[2], keys[3]);
        }
      }
    }

    std::uint32_t weights[2][kKeys / 16][4];
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float rescale[2];
      online_softmax(weights[m], scores[m], rows[m], rescale);
      multiply(out[m], rescale);
    }

    // out += weights . v, 16 keys at a time. Keys are the terms now, so fragments of values have
    // to be transposed on their way into registers.
#pragma unroll
    for (int b = 0; b < kKeys / 16; ++b) {
#pragma unroll
      for (int n = 0; n < kHeadDim; n += 16) {
        std::uint32_t values[4];
        const int row = 16 * b + lane % 16;
        load_matrices_transposed(values, smem_address(&shared.v[row][n + lane / 16 * 8]));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(out[m], n / 8, weights[m][b], values[0], values[1]);
          multiply_add(out[m], n / 8 + 1, weights[m][b], values[2], values[3]);
        }
      }
    }
    __syncthreads();  // the next tile overwrites this one
  }

#pragma unroll
  for (int m = 0; m < 2; ++m) {
    const std::size_t row = first_query + 32 * warp + 16 * m;
    store_rows(t.out + first + row * kHeadDim, out[m], rows[m]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  need_gpu(80);
  GPU(cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  return run_step("step 3 tensor cores", argc, argv, [](const Tensors& t) {
    attend<<<dim3(t.length / kQueries, kHeads), kThreads, sizeof(Shared)>>>(t);
  });
}
