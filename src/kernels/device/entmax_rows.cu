// src/kernels/device/entmax_rows.cu
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/entmax_row.cuh"
#include "kernels/device/entmax_rows.h"
#include "kernels/device/launch.h"

namespace keyhole::device {
namespace {

constexpr int32_t kWarps = 4, kCtasPerProcessor = 4;
// Of a list. A row with more keys of weight than this reads its keys several times.
constexpr int64_t kMostEntries = 4096, kFewestEntries = 256;

// Neighbouring warps take neighbouring rows: those read the same keys at about the same time.
template <class T>
__global__ void __launch_bounds__(32 * kWarps, kCtasPerProcessor)
    entmax_rows(const __grid_constant__ EntmaxParams p, BitmapLayout layout, RowScratch scratch) {
  __shared__ RowMemory memory[kWarps];
  const int64_t rows = int64_t{p.sizes.num_heads()} * p.sizes.q_len;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  const int64_t warp = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  char* const list = static_cast<char*>(scratch.lists) + warp * scratch.bytes_per_list;
  // Asks for 32 rows at a time whether they are wanted, one per lane.
  for (int64_t first = warp; first < rows; first += 32 * warps) {
    const int64_t mine = first + threadIdx.x % 32 * warps;
    const bool is_wanted =
        mine < rows && (p.candidates.count == nullptr || p.candidates.count[mine] == kAlone);
    for (uint32_t left = __ballot_sync(~0u, is_wanted); left != 0; left &= left - 1) {
      solve_row<T>(p, layout, memory[threadIdx.x / 32], list, scratch.bytes_per_list,
                   first + (__ffs(int(left)) - 1) * warps);
    }
  }
}

}  // namespace

int64_t RowScratch::bytes() const {
  return checked_mul(int64_t{num_ctas} * kWarps, int64_t{bytes_per_list}, "attention: lists");
}

RowScratch row_scratch_for(const Sizes& sizes, int num_processors) {
  const int64_t rows = int64_t{sizes.num_heads()} * sizes.q_len;
  const int64_t most = int64_t{kCtasPerProcessor} * std::max(1, num_processors);
  const int64_t entries =
      std::clamp(round_up(sizes.k_len, int64_t{32}) + 32, kFewestEntries, kMostEntries);
  return {nullptr, int32_t(round_up(entries * int64_t(sizeof(Scored<float>)), int64_t{256})),
          int32_t(std::min(ceil_div(rows, int64_t{kWarps}), most))};
}

void launch_entmax_rows(const EntmaxParams& params, DType dtype, BitmapLayout bitmaps,
                        const RowScratch& scratch, cudaStream_t stream) {
  if (scratch.num_ctas == 0) return;
  with_device_storage(dtype, [&](auto storage) {
    launch("entmax by rows", entmax_rows<decltype(storage)>,
           {unsigned(scratch.num_ctas), 32 * kWarps, 0}, stream, params, bitmaps, scratch);
  });
}

}  // namespace keyhole::device
