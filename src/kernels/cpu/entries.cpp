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

// What the entries of this backend share. on_amx: the products are those of tile registers.
template <class Storage>
KernelEntry entry(const char* what, Operation operation, bool on_amx) {
  const DType dtype = Traits<Storage>::dtype;
  KernelEntry entry{};
  entry.name = std::string("cpu.") + what + "." + to_string(dtype) + (on_amx ? ".amx" : "");
  entry.backend = "cpu";
  entry.operation = operation;
  entry.dtype = dtype;
  entry.max_head_dim = kMaxHeadDim;
  entry.tiles = {{64, 64}, {32, 32}};
  if (!on_amx) entry.tiles.push_back({16, 16});
  return entry;
}
template <class Storage, double (*kCost)(const TileShape&, double, double)>
KernelEntry forward_entry(const char* what, void (*forward)(const ForwardArgs&), bool on_amx) {
  KernelEntry made = entry<Storage>(what, Operation::forward, on_amx);
  made.cost = kCost;
  made.forward = forward;
  if (on_amx) made.objection = amx_objection<kCost>;
  return made;
}
template <class Storage, double (*kCost)(const TileShape&, double, double)>
KernelEntry backward_entry(const char* what, void (*backward)(const BackwardArgs&), bool on_amx) {
  KernelEntry made = entry<Storage>(what, Operation::backward, on_amx);
  made.cost = kCost;
  made.backward = backward;
  if (on_amx) made.objection = amx_objection<kCost>;
  return made;
}

template <class Storage>
void add_amx_entries(std::vector<KernelEntry>& entries) {
  if (!multiplies_on_amx(Traits<Storage>::dtype)) return;
  for (KernelEntry made :
       {forward_entry<Storage, forward_cost>("forward", forward_on_amx<Storage>, true),
        backward_entry<Storage, backward_cost>("backward", backward_on_amx<Storage>, true)}) {
    made.rounds_weights = true;
    entries.push_back(made);
  }
}

template <class Storage>
void add_entries(std::vector<KernelEntry>& entries) {
  entries.push_back(forward_entry<Storage, forward_cost>("forward", forward<Storage>, false));
  entries.push_back(backward_entry<Storage, backward_cost>("backward", backward<Storage>, false));
}

// Entmax and top_k. The backward pass costs what the forward pass does: it scans as well.
template <class Storage>
void add_entmax_entries(std::vector<KernelEntry>& entries, void (*forward)(const ForwardArgs&),
                        void (*backward)(const BackwardArgs&), bool on_amx) {
  for (KernelEntry made :
       {forward_entry<Storage, forward_cost>("entmax_forward", forward, on_amx),
        backward_entry<Storage, forward_cost>("entmax_backward", backward, on_amx)}) {
    made.weights = Weights::sparse;
    entries.push_back(made);
  }
}
template <class Storage>
void add_entmax_entries(std::vector<KernelEntry>& entries) {
  add_entmax_entries<Storage>(entries, entmax_forward<Storage>, entmax_backward<Storage>, false);
}
template <class Storage>
void add_entmax_amx_entries(std::vector<KernelEntry>& entries) {
  if (!multiplies_on_amx(Traits<Storage>::dtype)) return;
  add_entmax_entries<Storage>(entries, entmax_forward_on_amx<Storage>,
                              entmax_backward_on_amx<Storage>, true);
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
