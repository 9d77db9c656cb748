// course/03_flash_fast/step2_registers_gpu.cu [LENGTH]
// Needs sm_80.
// Step 2: warps own rows. A warp keeps the scores and the output of its 16 queries in registers,
// and reads shared memory in vectors of four floats, each of which takes part in several
// multiply-adds. Softmax needs no barrier any more: a row belongs to eight lanes of one warp.
#include "problem.h"

namespace {

using namespace course;

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kQueries = 16 * kWarps, kKeys = 64;
// Rows begin 16 bytes further in the banks than the row before: eight lanes read four floats of
// the same columns of eight rows without a conflict.
constexpr int kStride = kHeadDim + 4;

struct Shared {
  float q[kQueries][kStride];
  float kv[kKeys][kStride];  // first keys, then values
};

// Two bf16 as floats: a bf16 is the upper half of an fp32.
__device__ __forceinline__ float2 two(unsigned word, float factor) {
  return {__uint_as_float(word << 16) * factor, __uint_as_float(word & 0xffff0000) * factor};
}

// Copies 64 rows as fp32: 16 bytes, eight bf16, at a time.
__device__ void load_tile(float (&to)[64][kStride], const bf16* from, float factor) {
#pragma unroll
  for (int i = 0; i < 64 * kHeadDim / 8; i += kThreads) {
    const int at = i + int(threadIdx.x);
    const uint4 eight = reinterpret_cast<const uint4*>(from)[at];
    const float2 a = two(eight.x, factor), b = two(eight.y, factor);
    const float2 c = two(eight.z, factor), d = two(eight.w, factor);
    auto* const place = reinterpret_cast<float4*>(&to[at / 16][at % 16 * 8]);
    place[0] = {a.x, a.y, b.x, b.y};
    place[1] = {c.x, c.y, d.x, d.y};
  }
}

__device__ __forceinline__ float4 four(const float& first) {
  return *reinterpret_cast<const float4*>(&first);
}

// Combines the values of the eight lanes that share a row.
template <class Combine>
__device__ __forceinline__ float over_row(float value, Combine combine) {
#pragma unroll
  for (int step = 1; step < 8; step *= 2) value = combine(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

__global__ void __launch_bounds__(kThreads, 3) attend(Tensors t) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const std::size_t first_query = std::size_t{blockIdx.x} * kQueries, head = blockIdx.y;
  const std::size_t first = head * t.length * kHeadDim;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = lane % 8;
  // This lane has rows row .. row + 3 of the tile; of the scores keys part, part + 8, ...; of the
  // output columns 4 * part .. 4 * part + 3, and the same of each further block of 32 columns.
  const int row = 16 * warp + lane / 8 * 4;
  float out[4][16] = {}, row_sum[4] = {};
  float row_max[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};

  load_tile(shared.q, t.q + first + first_query * kHeadDim, kScaleLog2);
  for (int key = 0; key < t.length; key += kKeys) {
    load_tile(shared.kv, t.k + first + std::size_t(key) * kHeadDim, 1);
    __syncthreads();
    float scores[4][8] = {};
#pragma unroll 1
    for (int d = 0; d < kHeadDim; d += 4) {  // 12 loads of four floats, 128 multiply-adds
      float4 queries[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) queries[r] = four(shared.q[row + r][d]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float4 keys = four(shared.kv[part + 8 * j][d]);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          scores[r][j] += queries[r].x * keys.x + queries[r].y * keys.y + queries[r].z * keys.z +
                          queries[r].w * keys.w;
        }
      }
    }
    __syncthreads();
    load_tile(shared.kv, t.v + first + std::size_t(key) * kHeadDim, 1);

#pragma unroll
    for (int r = 0; r < 4; ++r) {  // online softmax, in registers
      float top = row_max[r], sum = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) top = fmaxf(top, scores[r][j]);
      top = over_row(top, [](float a, float b) { return fmaxf(a, b); });
      const float rescale = exp2f(row_max[r] - top);  // 0 for the first tile
      row_max[r] = top;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        scores[r][j] = exp2f(scores[r][j] - top);
        sum += scores[r][j];
      }
      row_sum[r] = row_sum[r] * rescale + sum;  // of this lane's keys; added up at the end
#pragma unroll
      for (float& value : out[r]) value *= rescale;
    }
    __syncthreads();

#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll 2
      for (int owner = 0; owner < 8; ++owner) {  // the lane of this row that has the weight
        float weights[4];
#pragma unroll
        for (int r = 0; r < 4; ++r)
          weights[r] = __shfl_sync(~0u, scores[r][j], lane / 8 * 8 + owner);
#pragma unroll
        for (int c = 0; c < 4; ++c) {  // 4 loads and 4 shuffles, 64 multiply-adds
          const float4 values = four(shared.kv[owner + 8 * j][4 * part + 32 * c]);
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            out[r][4 * c] += weights[r] * values.x;
            out[r][4 * c + 1] += weights[r] * values.y;
            out[r][4 * c + 2] += weights[r] * values.z;
            out[r][4 * c + 3] += weights[r] * values.w;
          }
        }
      }
    }
    __syncthreads();  // the next keys overwrite the values
  }

#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const float factor = 1 / over_row(row_sum[r], [](float a, float b) { return a + b; });
    bf16* const to = t.out + first + (first_query + row + r) * kHeadDim + 4 * part;
#pragma unroll
    for (int i = 0; i < 16; ++i) to[i / 4 * 32 + i % 4] = __float2bfloat16(out[r][i] * factor);
  }
}

}  // namespace

int main(int argc, char** argv) {
  need_gpu(80);
  GPU(cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  return run_step("step 2 rows in registers", argc, argv, [](const Tensors& t) {
    attend<<<dim3(t.length / kQueries, kHeads), kThreads, sizeof(Shared)>>>(t);
  });
}
