// src/kernels/simple/forward_entries.cpp
#include "kernels/simple/forward_entries.h"

#include <string>

#include "kernels/device/forward_call.h"
#include "kernels/simple/forward.h"

namespace keyhole::simple {
namespace {

// A pair in a narrow tile costs more. A thread has 4 x 2 scores instead of 8 x 4, so reads of
// shared memory feed half as many multiply-adds, and twice as many rows are loaded per pair.
// Estimated from instruction counts, not measured yet.
double forward_cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  return num_tiles * tile.q * tile.k * (tile == kWideTile ? 1.0 : 1.8);
}

template <DType kType>
KernelEntry forward_entry() {
  return {.name = std::string("simple.forward.") + to_string(kType),
          .backend = "simple",
          .device = Device::Kind::cuda,
          .operation = Operation::forward,
          .dtype = kType,
          .max_head_dim = 576,
          .tiles = {kWideTile, kNarrowTile},
          .cost = forward_cost,
          .forward = run_forward<kType>,
          .backward = nullptr,
          .rank = 2,
          .bitmaps = BitmapLayout::row_major,
          .min_compute_capability = 75,
          .forward_workspace = device::forward_workspace_bytes};
}

}  // namespace

std::vector<KernelEntry> forward_entries() {
  return {forward_entry<DType::f32>(), forward_entry<DType::f16>(), forward_entry<DType::bf16>()};
}

}  // namespace keyhole::simple
