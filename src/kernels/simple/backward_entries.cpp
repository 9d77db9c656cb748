// src/kernels/simple/backward_entries.cpp
#include "kernels/simple/backward_entries.h"

#include <string>

#include "kernels/device/backward_call.h"
#include "kernels/device/entmax_backward_call.h"
#include "kernels/simple/backward.h"

namespace keyhole::simple {
namespace {

// A small tile loads twice as often for the same products. Estimated from instruction counts, not
// measured yet.
double cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  return num_tiles * tile.q * tile.k * (tile.q >= 64 ? 1 : 1.6);
}

// Entmax and top_k: rows are followed by their supports, and tiles only where a row has none.
void entmax_backward(const BackwardArgs& args) {
  device::run_entmax_backward(args, BitmapLayout::row_major);
}

}  // namespace

std::vector<KernelEntry> backward_entries() {
  std::vector<KernelEntry> entries;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    entries.push_back({.name = std::string("simple.backward.") + to_string(dtype),
                       .backend = "simple",
                       .device = Device::Kind::cuda,
                       .operation = Operation::backward,
                       .dtype = dtype,
                       .max_head_dim = 576,
                       .tiles = {{64, 64}, {32, 32}},
                       .cost = cost,
                       .forward = nullptr,
                       .backward = backward,
                       .rank = 2,
                       .bitmaps = BitmapLayout::row_major,
                       .min_compute_capability = 75,
                       .objection = nullptr,
                       .forward_workspace = nullptr,
                       .backward_workspace = device::backward_workspace_bytes});
    KernelEntry entmax = entries.back();
    entmax.name = std::string("simple.entmax_backward.") + to_string(dtype);
    entmax.backward = entmax_backward;
    entmax.weights = Weights::sparse;
    entmax.schedule = device::entmax_schedule;
    entmax.backward_workspace = device::entmax_backward_workspace_bytes;
    entries.push_back(entmax);
  }
  return entries;
}

}  // namespace keyhole::simple
