// src/kernels/simple/entries.cu
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "kernels/device/forward_call.h"
#include "kernels/simple/entries.h"
#include "kernels/simple/forward.h"

namespace keyhole::simple {
namespace {

// A pair in a narrow tile costs more: a thread has 4 x 2 scores instead of 8 x 4, so that reads of
// shared memory feed half as many multiply-adds, and twice as many rows are loaded per pair. An
// estimate from instruction counts, not yet measured.
double forward_cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  return num_tiles * tile.q * tile.k * (tile == kWideTile ? 1.0 : 1.8);
}

template <class T>
KernelEntry forward_entry(DType dtype) {
  return {.name = std::string("simple.forward.") + to_string(dtype),
          .backend = "simple",
          .device = Device::Kind::cuda,
          .operation = Operation::forward,
          .dtype = dtype,
          .max_head_dim = 576,
          .tiles = {kWideTile, kNarrowTile},
          .cost = forward_cost,
          .forward = run_forward<T>,
          .backward = nullptr,
          .bitmaps = BitmapLayout::row_major,
          .min_compute_capability = 75,
          .forward_workspace = device::forward_workspace_bytes};
}

}  // namespace

std::vector<KernelEntry> forward_entries() {
  return {forward_entry<float>(DType::f32), forward_entry<__half>(DType::f16),
          forward_entry<__nv_bfloat16>(DType::bf16)};
}

}  // namespace keyhole::simple
