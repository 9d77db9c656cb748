// course/03_flash_fast/step4_pipeline_gpu.cu [LENGTH]
// Needs sm_80.
// Step 4: the same products, fed better. Tiles are swizzled in shared memory, so that fragments
// are read without bank conflicts. There is room for two tiles of keys and values: while one is
// multiplied, the next one arrives by cp.async.
#include "ampere.h"
#include "softmax.h"

namespace {

using namespace course;

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kQueries = 32 * kWarps, kKeys = 64;

struct Shared {
  bf16 q[kQueries * kHeadDim];
  bf16 k[2][kKeys * kHeadDim], v[2][kKeys * kHeadDim];
};

// The swizzle. A row has 16 chunks of 16 bytes; chunk c of row r lies where chunk c ^ r % 8 would
// be. The same chunk of eight neighbouring rows then lies in eight different groups of banks, and
// so do eight neighbouring chunks of one row.
__device__ __forceinline__ std::uint32_t chunk_at(const bf16* tile, int row, int chunk) {
  return smem_address(tile) + std::uint32_t(row * 256 + (chunk ^ row % 8) * 16);
}

// Starts to copy a tile: eight rows at a time. A thread keeps to its chunk, and its rows are eight
// apart, so that it has one address in each memory and adds constants.
template <int kRows>
__device__ __forceinline__ void load_tile(const bf16* to, const bf16* from) {
  const int row = threadIdx.x / 16, chunk = threadIdx.x % 16;
  const std::uint32_t place = chunk_at(to, row, chunk);
  from += row * kHeadDim + chunk * 8;
#pragma unroll
  for (int r = 0; r < kRows; r += kThreads / 16) copy_async(place + r * 256, from + r * kHeadDim);
}

__global__ void __launch_bounds__(kThreads, 2) attend(Tensors t) {
  // 256: an exclusive or with an address changes the place in a row only if rows begin at multiples
  // of their 256 bytes.
  extern __shared__ __align__(256) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const std::size_t first_query = std::size_t{blockIdx.x} * kQueries, head = blockIdx.y;
  const std::size_t first = head * t.length * kHeadDim;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tiles = t.length / kKeys;

  const bf16 *k_from = t.k + first, *v_from = t.v + first;
  const auto load = [&](int tile) {
    load_tile<kKeys>(shared.k[tile % 2], k_from + std::size_t(tile) * (kKeys * kHeadDim));
    load_tile<kKeys>(shared.v[tile % 2], v_from + std::size_t(tile) * (kKeys * kHeadDim));
  };
  // Where this lane's addresses begin. Further chunks are an exclusive or away, further rows a sum.
  const std::uint32_t q_at = chunk_at(shared.q, 32 * warp + lane % 16, lane / 16);
  const int k_row = lane / 16 * 8 + lane % 8, v_row = lane % 16;
  float out[2][kHeadDim / 2] = {};
  Rows rows[2];
  load_tile<kQueries>(shared.q, t.q + first + first_query * kHeadDim);
  load(0);
  commit_copies();

  for (int tile = 0; tile < tiles; ++tile) {
    // The next tile takes the place of the one before: all warps have passed the barrier below.
    if (tile + 1 < tiles) load(tile + 1);
    commit_copies();    // a group for each tile, also an empty one
    await_copies<1>();  // this thread's part of this tile is there
    __syncthreads();    // everybody's is
    std::uint32_t q = q_at, k = chunk_at(shared.k[tile % 2], k_row, lane / 8 % 2);
    std::uint32_t v = chunk_at(shared.v[tile % 2], v_row, lane / 16);
    // Hides where these come from. The compiler then adds constants to them where it needs a sum,
    // and keeps no register for each address.
    asm volatile("" : "+r"(q), "+r"(k), "+r"(v));

    float scores[2][kKeys / 2] = {};
#pragma unroll 1  // a loop: with all of it unrolled, registers run out
    for (int d = 0; d < kHeadDim / 8; d += 2) {  // chunks
      std::uint32_t queries[2][4], keys[4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        load_matrices(queries[m], (q ^ d * 16) + m * 16 * 256);
      }
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        load_matrices(keys, (k ^ d * 16) + n * 256);
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

#pragma unroll
    for (int b = 0; b < kKeys / 16; ++b) {
#pragma unroll
      for (int n = 0; n < kHeadDim / 8; n += 2) {  // chunks, too
        std::uint32_t values[4];
        load_matrices_transposed(values, (v ^ n * 16) + b * 16 * 256);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          multiply_add(out[m], n, weights[m][b], values[0], values[1]);
          multiply_add(out[m], n + 1, weights[m][b], values[2], values[3]);
        }
      }
    }
    __syncthreads();  // this tile may be overwritten
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
  return run_step("step 4 swizzle and cp.async", argc, argv, [](const Tensors& t) {
    attend<<<dim3(t.length / kQueries, kHeads), kThreads, sizeof(Shared)>>>(t);
  });
}
