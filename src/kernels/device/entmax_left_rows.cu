// src/kernels/device/entmax_left_rows.cu
#include <algorithm>

#include "kernels/device/entmax_cta_row.cuh"
#include "kernels/device/entmax_left_rows.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"

namespace keyhole::device {
namespace {

constexpr int32_t kLeftThreads = 32 * kCtaWarps;
// Rows of which a thread asks at once whether they are left: mostly none is, and asking is all that
// the launch takes.
constexpr int32_t kAsked = 4;

// More rows than this of those asked for are left to warps: each is done later, all of them sooner.
constexpr int32_t kMostByCta = 32;

struct LeftMemory {
  CtaMemory row;
  uint32_t votes[kAsked * kCtaWarps];  // bit j of [i]: the row 32 i + j of those asked for is left
};

// A CTA has the rows b, b + CTAs, b + 2 CTAs, ...: rows that are left are often neighbours.
template <class T>
struct LeftRows {
  const EntmaxParams& p;
  BitmapLayout layout;
  LeftMemory& memory;
  void* list_memory;  // of this warp
  int32_t list_bytes;

  __device__ int64_t num_rows() const { return int64_t{p.sizes.num_heads()} * p.sizes.q_len; }
  __device__ bool is_left(int64_t row) const {
    return row < num_rows() && p.candidates.count[row] == kAlone;
  }

  // A row at a time, by the whole CTA. Returns whether some rows are still left.
  __device__ bool solve_by_cta() const {
    const int32_t warp = int32_t(threadIdx.x / 32);
    const int64_t step = gridDim.x;
    bool any_left = false;
    for (int64_t first = blockIdx.x; first < num_rows(); first += kAsked * kLeftThreads * step) {
      bool is_mine_left[kAsked];
#pragma unroll
      for (int32_t i = 0; i < kAsked; ++i) {
        is_mine_left[i] = is_left(first + (kLeftThreads * i + int32_t(threadIdx.x)) * step);
      }
      bool any_of_mine = false;
#pragma unroll
      for (int32_t i = 0; i < kAsked; ++i) {
        const uint32_t votes = __ballot_sync(~0u, is_mine_left[i]);
        if (threadIdx.x % 32 == 0) memory.votes[kCtaWarps * i + warp] = votes;
        any_of_mine = any_of_mine || is_mine_left[i];
      }
      if (!__syncthreads_or(any_of_mine)) continue;
      int32_t num_left = 0;
      for (int32_t i = 0; i < kAsked * kCtaWarps; ++i) num_left += __popc(memory.votes[i]);
      if (num_left > kMostByCta) {
        any_left = true;
        __syncthreads();  // all votes have been read
        continue;
      }
      for (int32_t i = 0; i < kAsked * kCtaWarps; ++i) {
        for (uint32_t left = memory.votes[i]; left != 0; left &= left - 1) {
          const int64_t index = first + (32 * i + __ffs(int(left)) - 1) * step;
          const EntmaxRow<T> row(p, layout, memory.row.warps[warp], index, {warp, kCtaWarps});
          if (CtaRow<T>{memory.row, row, list_in<float>(list_memory, list_bytes)}.solve()) {
            if (threadIdx.x == 0) p.candidates.count[index] = 0;
          } else {
            any_left = true;
          }
        }
      }
      __syncthreads();  // all votes have been read, and all counts written
    }
    return any_left;
  }

  // The rest, a row a warp: it copes with everything.
  __device__ __noinline__ void solve_by_warps() const {
    const int32_t warp = int32_t(threadIdx.x / 32);
    const int64_t step = int64_t{gridDim.x} * kCtaWarps;
    // Asks for 32 rows at a time whether they are left, one per lane.
    for (int64_t first = blockIdx.x + int64_t{gridDim.x} * warp; first < num_rows();
         first += 32 * step) {
      const bool is_mine_left = is_left(first + threadIdx.x % 32 * step);
      for (uint32_t left = __ballot_sync(~0u, is_mine_left); left != 0; left &= left - 1) {
        solve_row<T>(p, layout, memory.row.warps[warp], list_memory, list_bytes,
                     first + (__ffs(int(left)) - 1) * step);
      }
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kLeftThreads, 1)
    entmax_left_rows(const __grid_constant__ EntmaxParams p, BitmapLayout layout,
                     RowScratch scratch) {
  extern __shared__ __align__(16) unsigned char memory[];
  const int64_t warp = int64_t{blockIdx.x} * kCtaWarps + threadIdx.x / 32;
  const LeftRows<T> rows = {p, layout, *reinterpret_cast<LeftMemory*>(memory), scratch.list(warp),
                            scratch.bytes_per_list};
  if (rows.solve_by_cta()) rows.solve_by_warps();
}

}  // namespace

RowScratch left_row_scratch_for(const Sizes& sizes, int num_processors) {
  const int64_t rows = int64_t{sizes.num_heads()} * sizes.q_len;
  return RowScratch::of(sizes.k_len,
                        kCtaWarps * std::min(rows, int64_t{std::max(1, num_processors)}));
}

void launch_entmax_left_rows(const EntmaxParams& params, DType dtype, BitmapLayout bitmaps,
                             const RowScratch& scratch, cudaStream_t stream) {
  if (scratch.num_lists == 0) return;
  with_device_storage(dtype, [&](auto storage) {
    using T = decltype(storage);
    static OncePerGpu reserve;
    reserve_shared_memory(reserve, entmax_left_rows<T>, int(sizeof(LeftMemory)),
                          "the rows of entmax that are left");
    launch("entmax, rows that are left", entmax_left_rows<T>,
           {unsigned(scratch.num_lists) / kCtaWarps, kLeftThreads, sizeof(LeftMemory)}, stream,
           params, bitmaps, scratch);
  });
}

}  // namespace keyhole::device
