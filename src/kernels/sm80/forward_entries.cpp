// src/kernels/sm80/forward_entries.cpp
#include "kernels/sm80/forward_entries.h"

#include <string>

#include "base/check.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/row_objection.h"
#include "kernels/sm80/config.h"
#include "kernels/sm80/forward_launch.h"

namespace keyhole::sm80 {
namespace {

// A pair of a 64-row tile reads more shared memory: 16 rows a warp share a key instead of 32, which
// takes 1,280 cycles for 64x64 pairs of head_dim 128 against 896 in the tall tile. It also reads
// twice as much from the L2 cache (64 rows a CTA instead of 128). Estimated from these numbers, not
// measured yet.
double cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  return num_tiles * tile.q * tile.k * (tile.q >= 128 ? 1 : 1.5);
}

std::string objection(const Request& request) {
  return device::row_objection(request, kShared99KiB);
}

template <DType kType>
void add_entries(std::vector<KernelEntry>& entries) {
  struct Padded {
    int64_t head_dim;
    std::vector<TileShape> tiles;
    void (*forward)(const ForwardArgs& args);
  };
  const Padded all[] = {
      {64,
       {{Dim64::tile_q, Dim64::tile_k}, {Dim64Small::tile_q, Dim64Small::tile_k}},
       run_forward<kType, 64>},
      {96, {{Dim96::tile_q, Dim96::tile_k}}, run_forward<kType, 96>},
      {128,
       {{Dim128::tile_q, Dim128::tile_k}, {Dim128Small::tile_q, Dim128Small::tile_k}},
       run_forward<kType, 128>},
      {192, {{Dim192::tile_q, Dim192::tile_k}}, run_forward<kType, 192>},
      {256, {{Dim256::tile_q, Dim256::tile_k}}, run_forward<kType, 256>},
  };
  for (const Padded& padded : all) {
    entries.push_back({.name = say("sm80.forward.", to_string(kType), ".d", padded.head_dim),
                       .backend = "sm80",
                       .device = Device::Kind::cuda,
                       .operation = Operation::forward,
                       .dtype = kType,
                       .max_head_dim = padded.head_dim,
                       .tiles = padded.tiles,
                       .cost = cost,
                       .forward = padded.forward,
                       .backward = nullptr,
                       .rank = 1,
                       .bitmaps = BitmapLayout::mma,
                       .min_compute_capability = 80,
                       .rounds_weights = true,
                       .objection = objection,
                       .forward_workspace = device::forward_workspace_bytes,
                       .backward_workspace = nullptr});
  }
}

}  // namespace

// Smallest padded head_dim first: dispatch takes the first entry without an objection.
std::vector<KernelEntry> forward_entries() {
  std::vector<KernelEntry> entries;
  add_entries<DType::bf16>(entries);
  add_entries<DType::f16>(entries);
  return entries;
}

}  // namespace keyhole::sm80
