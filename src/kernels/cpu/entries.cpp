// src/kernels/cpu/entries.cpp
#include "kernels/cpu/entries.h"

#include <string>

#include "base/dtype.h"
#include "kernels/cpu/backward.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/forward.h"
#include "kernels/cpu/primitives.h"

namespace keyhole::cpu {
namespace {

// A tile costs its pairs and, whatever its size, the steps around them; small tiles also fill the
// registers of the matrix product less well. In pairs, measured by bench/cpu_kernels.
double forward_cost(const TileShape& tile, double num_tiles) {
  const double pairs = double(tile.q) * tile.k;
  const double per_row = tile.q < 32 ? 1.15 : 1.0;
  return num_tiles * (pairs * per_row + 64);
}

double backward_cost(const TileShape& tile, double num_tiles) {
  return forward_cost(tile, num_tiles);
}

template <class Storage>
void add_entries(std::vector<KernelEntry>& entries) {
  const DType dtype = Traits<Storage>::dtype;
  entries.push_back({.name = std::string("cpu.forward.") + to_string(dtype),
                     .backend = "cpu",
                     .operation = Operation::forward,
                     .dtype = dtype,
                     .max_head_dim = kMaxHeadDim,
                     .tiles = {{64, 64}, {32, 32}, {16, 16}},
                     .cost = forward_cost,
                     .forward = forward<Storage>,
                     .backward = nullptr});
  entries.push_back({.name = std::string("cpu.backward.") + to_string(dtype),
                     .backend = "cpu",
                     .operation = Operation::backward,
                     .dtype = dtype,
                     .max_head_dim = kMaxHeadDim,
                     .tiles = {{64, 64}, {32, 32}, {16, 16}},
                     .cost = backward_cost,
                     .forward = nullptr,
                     .backward = backward<Storage>});
}

}  // namespace

std::vector<KernelEntry> entries() {
  std::vector<KernelEntry> entries;
  add_entries<float>(entries);
  add_entries<Half>(entries);
  add_entries<BFloat16>(entries);
  add_entries<double>(entries);
  return entries;
}

const char* simd_target() { return primitives<float>().target; }

}  // namespace keyhole::cpu
