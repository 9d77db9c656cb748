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

// The cost of a pair in a tile of each height, relative to the tallest. Small tiles use the
// registers of the matrix product less well, even more so in the backward pass, which adds to dq
// and dk once per tile. Measured with dense attention, 4 heads of 1,024 x 128, in each tile on
// AVX-512 (bench/cpu_kernels measures the effect).
double forward_cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  const double pair = tile.q >= 64 ? 1 : tile.q >= 32 ? 1.1 : 1.35;
  return num_tiles * tile.q * tile.k * pair;
}
double backward_cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  const double pair = tile.q >= 64 ? 1 : tile.q >= 32 ? 1.25 : 1.5;
  return num_tiles * tile.q * tile.k * pair;
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
