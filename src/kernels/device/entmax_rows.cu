// src/kernels/device/entmax_rows.cu
#include <algorithm>

#include "kernels/device/entmax_row.cuh"
#include "kernels/device/entmax_rows.h"
#include "kernels/device/launch.h"

namespace keyhole::device {
namespace {

constexpr int32_t kSolverWarps = 4, kCtasPerProcessor = 4;

// Neighbouring warps take neighbouring rows: those read the same keys at about the same time.
template <class T>
__global__ void __launch_bounds__(32 * kSolverWarps, kCtasPerProcessor)
    entmax_rows(const __grid_constant__ EntmaxParams p, BitmapLayout layout, RowScratch scratch) {
  __shared__ RowMemory memory[kSolverWarps];
  const int64_t rows = int64_t{p.sizes.num_heads()} * p.sizes.q_len;
  const int64_t warps = int64_t{gridDim.x} * kSolverWarps;
  const int64_t warp = int64_t{blockIdx.x} * kSolverWarps + threadIdx.x / 32;
  for (int64_t row = warp; row < rows; row += warps) {
    solve_row<T>(p, layout, memory[threadIdx.x / 32], scratch.list(warp), scratch.bytes_per_list,
                 row);
  }
}

}  // namespace

RowScratch row_scratch_for(const Sizes& sizes, int num_processors) {
  const int64_t rows = int64_t{sizes.num_heads()} * sizes.q_len;
  const int64_t most = int64_t{kCtasPerProcessor} * std::max(1, num_processors);
  return RowScratch::of(sizes.k_len,
                        kSolverWarps * std::min(ceil_div(rows, int64_t{kSolverWarps}), most));
}

void launch_entmax_rows(const EntmaxParams& params, DType dtype, BitmapLayout bitmaps,
                        const RowScratch& scratch, cudaStream_t stream) {
  if (scratch.num_lists == 0) return;
  with_device_storage(dtype, [&](auto storage) {
    launch("entmax by rows", entmax_rows<decltype(storage)>,
           {unsigned(scratch.num_lists) / kSolverWarps, 32 * kSolverWarps, 0}, stream, params,
           bitmaps, scratch);
  });
}

}  // namespace keyhole::device
