// src/kernels/simple/entmax_entries.cpp
#include "kernels/simple/entmax_entries.h"

#include <string>

#include "kernels/device/entmax_forward_call.h"
#include "kernels/simple/forward.h"

namespace keyhole::simple {
namespace {

// A row visits its keys in steps of 32, masked or not, so a tile costs its pairs.
double forward_cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  return num_tiles * tile.q * tile.k;
}

void run_forward(const ForwardArgs& args) {
  device::run_entmax_forward(args, BitmapLayout::row_major);
}

KernelEntry forward_entry(DType dtype) {
  return {.name = std::string("simple.entmax_forward.") + to_string(dtype),
          .backend = "simple",
          .device = Device::Kind::cuda,
          .operation = Operation::forward,
          .dtype = dtype,
          .max_head_dim = 576,
          .tiles = {kWideTile, kNarrowTile},
          .cost = forward_cost,
          .forward = run_forward,
          .backward = nullptr,
          .rank = 2,
          .weights = Weights::sparse,
          .bitmaps = BitmapLayout::row_major,
          .min_compute_capability = 75,
          .forward_workspace = device::entmax_rows_workspace_bytes};
}

}  // namespace

std::vector<KernelEntry> entmax_entries() {
  return {forward_entry(DType::f32), forward_entry(DType::f16), forward_entry(DType::bf16)};
}

}  // namespace keyhole::simple
