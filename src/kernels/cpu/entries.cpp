// src/kernels/cpu/entries.cpp
#include "kernels/cpu/entries.h"

#include <string>

#include "base/dtype.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/backward.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/forward.h"
#include "kernels/cpu/primitives.h"

namespace keyhole::cpu {
namespace {

// What a pair costs in a tile of each height, against a pair in the tallest: small tiles fill the
// registers of the matrix product less well, and more so the backward pass, which adds to dq and dk
// once per tile. From dense attention, 4 heads of 1,024 x 128, followed in each tile on AVX-512
// (`keyhole bench sweep` measures what follows from it).
double forward_cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  const double pair = tile.q >= 64 ? 1 : tile.q >= 32 ? 1.1 : 1.35;
  return num_tiles * tile.q * tile.k * pair;
}
double backward_cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  const double pair = tile.q >= 64 ? 1 : tile.q >= 32 ? 1.25 : 1.5;
  return num_tiles * tile.q * tile.k * pair;
}

// Whether the entries of this machine include 16-bit products of this type: the tile registers'
// rows of 16 sums are the vectors of everything else.
bool multiplies_on_amx(DType dtype) {
  return primitives<float>().lanes == amx::kCols && amx::multiplies(dtype);
}

template <class Storage>
void add_amx_entries(std::vector<KernelEntry>& entries) {
  const DType dtype = Traits<Storage>::dtype;
  if (!multiplies_on_amx(dtype)) return;
  entries.push_back({.name = std::string("cpu.forward.") + to_string(dtype) + ".amx",
                     .backend = "cpu",
                     .operation = Operation::forward,
                     .dtype = dtype,
                     .max_head_dim = kMaxHeadDim,
                     .tiles = {{64, 64}, {32, 32}},
                     .cost = forward_cost,
                     .forward = forward_on_amx<Storage>,
                     .backward = nullptr,
                     .rounds_weights = true});
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
  add_amx_entries<Half>(entries);  // dispatch takes the first that suits
  add_amx_entries<BFloat16>(entries);
  add_entries<float>(entries);
  add_entries<Half>(entries);
  add_entries<BFloat16>(entries);
  add_entries<double>(entries);
  return entries;
}

const char* simd_target() { return primitives<float>().target; }

}  // namespace keyhole::cpu
