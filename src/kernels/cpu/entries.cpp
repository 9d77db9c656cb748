// src/kernels/cpu/entries.cpp
#include "kernels/cpu/entries.h"

#include <algorithm>
#include <limits>
#include <string>

#include "base/dtype.h"
#include "kernels/cpu/amx.h"
#include "kernels/cpu/backward.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/entmax_backward.h"
#include "kernels/cpu/entmax_forward.h"
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

// A row of sums in a tile register is a vector of everything else that the kernels do.
bool multiplies_on_amx(DType dtype) {
  return primitives<float>().lanes == amx::kCols && amx::multiplies(dtype);
}

// Tiles of 16 keys are left to vectors. If they visit so few pairs that vectors are faster, so is
// the whole call. On AMX a pair costs a quarter (head_dim 128) to 0.4 (head_dim 64) of one on
// vectors.
template <double (*kCost)(const TileShape&, double, double)>
std::string amx_objection(const Request& request) {
  constexpr double kPairOnAmx = 0.4;
  if (request.lists == nullptr || !request.lists->has_tiles()) return {};
  const auto cost_in = [&](const TileShape& tile) {
    const double num_tiles = request.lists->num_tiles(tile);
    return num_tiles < 0 ? std::numeric_limits<double>::infinity() : kCost(tile, num_tiles, 0);
  };
  const double on_amx = kPairOnAmx * std::min(cost_in({64, 64}), cost_in({32, 32}));
  return on_amx <= cost_in({16, 16}) ? ""
                                     : "visits more pairs than the lists have in tiles of 16x16";
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
                     .rounds_weights = true,
                     .objection = amx_objection<forward_cost>});
  entries.push_back({.name = std::string("cpu.backward.") + to_string(dtype) + ".amx",
                     .backend = "cpu",
                     .operation = Operation::backward,
                     .dtype = dtype,
                     .max_head_dim = kMaxHeadDim,
                     .tiles = {{64, 64}, {32, 32}},
                     .cost = backward_cost,
                     .forward = nullptr,
                     .backward = backward_on_amx<Storage>,
                     .rounds_weights = true,
                     .objection = amx_objection<backward_cost>});
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

template <class Storage>
void add_entmax_amx_entries(std::vector<KernelEntry>& entries) {
  const DType dtype = Traits<Storage>::dtype;
  if (!multiplies_on_amx(dtype)) return;
  entries.push_back({.name = std::string("cpu.entmax_forward.") + to_string(dtype) + ".amx",
                     .backend = "cpu",
                     .operation = Operation::forward,
                     .dtype = dtype,
                     .max_head_dim = kMaxHeadDim,
                     .tiles = {{64, 64}, {32, 32}},
                     .cost = forward_cost,
                     .forward = entmax_forward_on_amx<Storage>,
                     .backward = nullptr,
                     .weights = Weights::sparse,
                     .objection = amx_objection<forward_cost>});
  entries.push_back({.name = std::string("cpu.entmax_backward.") + to_string(dtype) + ".amx",
                     .backend = "cpu",
                     .operation = Operation::backward,
                     .dtype = dtype,
                     .max_head_dim = kMaxHeadDim,
                     .tiles = {{64, 64}, {32, 32}},
                     .cost = forward_cost,  // it scans as the forward pass does
                     .forward = nullptr,
                     .backward = entmax_backward_on_amx<Storage>,
                     .weights = Weights::sparse,
                     .objection = amx_objection<forward_cost>});
}

template <class Storage>
void add_entmax_entries(std::vector<KernelEntry>& entries) {
  const DType dtype = Traits<Storage>::dtype;
  entries.push_back({.name = std::string("cpu.entmax_forward.") + to_string(dtype),
                     .backend = "cpu",
                     .operation = Operation::forward,
                     .dtype = dtype,
                     .max_head_dim = kMaxHeadDim,
                     .tiles = {{64, 64}, {32, 32}, {16, 16}},
                     .cost = forward_cost,
                     .forward = entmax_forward<Storage>,
                     .backward = nullptr,
                     .weights = Weights::sparse});
  entries.push_back({.name = std::string("cpu.entmax_backward.") + to_string(dtype),
                     .backend = "cpu",
                     .operation = Operation::backward,
                     .dtype = dtype,
                     .max_head_dim = kMaxHeadDim,
                     .tiles = {{64, 64}, {32, 32}, {16, 16}},
                     .cost = forward_cost,  // it scans as the forward pass does
                     .forward = nullptr,
                     .backward = entmax_backward<Storage>,
                     .weights = Weights::sparse});
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
  add_entmax_amx_entries<Half>(entries);
  add_entmax_amx_entries<BFloat16>(entries);
  add_entmax_entries<float>(entries);
  add_entmax_entries<Half>(entries);
  add_entmax_entries<BFloat16>(entries);
  add_entmax_entries<double>(entries);
  return entries;
}

std::string simd_target() {
  std::string text = primitives<float>().target;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    if (multiplies_on_amx(dtype)) text += std::string(", AMX ") + to_string(dtype);
  }
  return text;
}

}  // namespace keyhole::cpu
