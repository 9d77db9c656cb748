// src/kernels/device/finish_queries.cu
// A CTA takes 64 queries of a residue class. It reads blocks as stored, rearranges them to rows in
// shared memory, and stores rows in vectors.
#include "base/check.h"
#include "kernels/device/finish_queries.h"
#include "kernels/device/launch.h"
#include "kernels/device/ptx.cuh"
#include "kernels/device/query_blocks.cuh"
#include "kernels/device/row_blocks.cuh"

namespace keyhole::device {
namespace {

// The row pitch in shared memory, in elements: 16 bytes more than a row, so that the eight rows a
// warp stores to are in different banks.
__host__ __device__ constexpr int32_t pitch_of(int32_t head_dim) { return head_dim + 8; }

// Neighbours of a row, stored together.
template <class T>
struct alignas(2 * sizeof(T)) Pair {
  T first, second;
};

// Whose dq is stored.
struct AllRows {
  __device__ bool is_nothing(const BackwardParams&, int32_t, int32_t, int64_t) const {
    return false;
  }
  __device__ bool has_row(int64_t) const { return true; }
};
struct OnlyTiled {
  TiledRows tiled;
  const EntmaxCounters* counters;

  __device__ bool is_nothing(const BackwardParams& p, int32_t head_index, int32_t class_index,
                             int64_t first) const {
    const int32_t tile = int32_t(first / p.view.tile.q);
    return counters->any_tiled == 0 ||
           (tiled.chosen_of(head_index, class_index)[tile / 32] >> tile % 32 & 1) == 0;
  }
  __device__ bool has_row(int64_t row) const { return tiled.has_row(row); }
};

template <class T, class Rows>
__global__ void __launch_bounds__(kBlockThreads)
    finish_queries(const __grid_constant__ BackwardParams p, const __grid_constant__ Rows which) {
  await_launch_before();
  let_next_launch_begin();
  extern __shared__ __align__(16) unsigned char memory[];
  T* const tile = reinterpret_cast<T*>(memory);
  const int32_t head_dim = p.sizes.head_dim, pitch = pitch_of(head_dim), columns = head_dim / 8;
  const uint32_t per_class = uint32_t(p.dq_rows_per_class / kBlockRows);
  // From the last: what was added last may still be in the cache.
  const uint32_t place = gridDim.x - 1 - blockIdx.x;
  const uint32_t class_number = place / per_class;  // over all heads
  const int64_t first = int64_t{place - class_number * per_class} * kBlockRows;
  const uint32_t classes = uint32_t(p.view.classes);
  const int32_t head_index = int32_t(class_number / classes);
  const int32_t class_index = int32_t(class_number - uint32_t(head_index) * classes);
  const ResidueClass residue = p.view.residues[class_index];
  if (first >= residue.num_q) return;
  if (which.is_nothing(p, head_index, class_index, first)) return;

  const float* blocks = p.sums.dq + (class_number * p.dq_rows_per_class + first) * head_dim;
  const int32_t lane = int32_t(threadIdx.x % 32);
#pragma unroll 8
  for (int32_t block = int32_t(threadIdx.x / 32); block < kBlockRows / 16 * columns;
       block += kBlockThreads / 32) {
    const float4 four = load_from_block(blocks + block * kBlockFloats + place_of_lane(lane));
    const int32_t row = block / columns * 16 + lane / 4;
    const int32_t column = block % columns * 8 + lane % 4 * 2;
    const float above[2] = {p.sizes.scale * four.x, p.sizes.scale * four.y};
    const float below[2] = {p.sizes.scale * four.z, p.sizes.scale * four.w};
    *reinterpret_cast<Pair<T>*>(tile + row * pitch + column) = {stored_as<T>(above[0]),
                                                                stored_as<T>(above[1])};
    *reinterpret_cast<Pair<T>*>(tile + (row + 8) * pitch + column) = {stored_as<T>(below[0]),
                                                                      stored_as<T>(below[1])};
  }
  __syncthreads();

  const int32_t batch = head_index / p.sizes.heads, head = head_index - batch * p.sizes.heads;
  const int32_t rows = int32_t(min(int64_t{kBlockRows}, residue.num_q - first));
  bool is_good = true;
  for (int32_t i = int32_t(threadIdx.x); i < rows * columns; i += kBlockThreads) {
    const int32_t row = i / columns, column = i % columns * 8;
    const uint4 vector = *reinterpret_cast<const uint4*>(tile + row * pitch + column);
    const int64_t query = residue.first_q + p.view.stride * (first + row);
    if (!which.has_row(head_index * p.sizes.q_len + query)) continue;
    store_vector(p.dq.row<T>(batch, head, query) + column, vector);
    float values[8];
    convert<T>(vector, values);
#pragma unroll
    for (int32_t j = 0; j < 8; ++j) is_good = is_good && is_finite(values[j]);
  }
  if (!is_good) *p.found_nonfinite = 1;
}

template <class T, class Rows>
void launch_blocks(const BackwardParams& p, const Rows& rows, bool begins_early,
                   cudaStream_t stream) {
  const int64_t classes = int64_t{p.sizes.num_heads()} * p.view.classes;
  const uint32_t ctas = num_row_blocks(classes, p.dq_rows_per_class);
  const size_t bytes = size_t(kBlockRows) * size_t(pitch_of(p.sizes.head_dim)) * sizeof(T);
  KEYHOLE_ASSERT(bytes <= 48 * 1024, "dq in blocks with head_dim ", p.sizes.head_dim);
  launch("the end of dq", finish_queries<T, Rows>, {ctas, kBlockThreads, bytes, begins_early},
         stream, p, rows);
}

template <class Rows>
void launch_as(DType dtype, const BackwardParams& p, const Rows& rows, bool begins_early,
               cudaStream_t stream) {
  if (dtype == DType::f16) return launch_blocks<__half>(p, rows, begins_early, stream);
  KEYHOLE_ASSERT(dtype == DType::bf16, "sums of dq in blocks are for 16-bit types");
  launch_blocks<__nv_bfloat16>(p, rows, begins_early, stream);
}

}  // namespace

void launch_finish_queries(const BackwardParams& params, DType dtype, bool begins_early,
                           cudaStream_t stream) {
  launch_as(dtype, params, AllRows{}, begins_early, stream);
}
void launch_finish_tiled_queries(const BackwardParams& params, const TiledRows& tiled,
                                 const EntmaxCounters* counters, DType dtype, cudaStream_t stream) {
  launch_as(dtype, params, OnlyTiled{tiled, counters}, /*begins_early=*/false, stream);
}

}  // namespace keyhole::device
