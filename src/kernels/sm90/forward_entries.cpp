// src/kernels/sm90/forward_entries.cpp
#include "kernels/sm90/forward_entries.h"

#include <string>

#include "base/check.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/row_objection.h"
#include "kernels/sm90/forward_config.h"
#include "kernels/sm90/forward_launch.h"

namespace keyhole::sm90 {
namespace {

// What a list costs beside its tiles, in tiles: the weights of its first one have nothing of their
// own list to hide behind. From times of windows and blocks at head_dim 128 on an H200, of the
// kernel that this one grew from; not measured again since lists are joined.
constexpr double kTilesPerList = 1.5, kTilesPerShortList = 2.7;
// A pair in a tile of 64 x 64 against one in the large tile; from the same times.
constexpr double kShortPair = 1.21;

bool is_short(const TileShape& tile) { return tile.q == 64; }

double cost(const TileShape& tile, double num_tiles, double num_lists) {
  const double pairs = double(tile.q) * double(tile.k);
  return is_short(tile) ? kShortPair * pairs * (num_tiles + kTilesPerShortList * num_lists)
                        : pairs * (num_tiles + kTilesPerList * num_lists);
}

// Of the second-level cache, what the keys and values of a section may fill. Measured: with 0.6
// dense attention at 4 x 4,096 tokens takes 4 % longer (docs/performance-log.md).
constexpr double kCacheShare = 0.25;

Persistence persistence(const TileShape& tile) {
  return is_short(tile)
             ? Persistence{ForwardDim128Short::ctas_per_sm, kTilesPerShortList, kCacheShare}
             : Persistence{ForwardDim128::ctas_per_sm, kTilesPerList, kCacheShare};
}

std::string objection(const Request& request) {
  if (!request.why_no_tma.empty()) return request.why_no_tma;
  return device::row_objection(request, kForwardSharedBytes);
}

struct Padded {
  int64_t head_dim;
  std::vector<TileShape> tiles;
  void (*forward)(const ForwardArgs& args);
};

template <DType kType, Bend kBend>
void add_entries(std::vector<KernelEntry>& entries) {
  // With a softcap there is the large tile alone (forward.cuh).
  const auto tiles_of = [](const TileShape& large, const TileShape& small) {
    return kBend == Bend::none ? std::vector{large, small} : std::vector{large};
  };
  const Padded all[] = {
      {64, tiles_of(tile_of<ForwardDim64>(), tile_of<ForwardDim64Short>()),
       run_forward<kType, 64, kBend>},
      {96, {tile_of<ForwardDim96>()}, run_forward<kType, 96, kBend>},
      {128, tiles_of(tile_of<ForwardDim128>(), tile_of<ForwardDim128Short>()),
       run_forward<kType, 128, kBend>},
      {192, {tile_of<ForwardDim192>()}, run_forward<kType, 192, kBend>},
      {256, {tile_of<ForwardDim256>()}, run_forward<kType, 256, kBend>},
  };
  for (const Padded& padded : all) {
    entries.push_back({.name = say("sm90.forward.", to_string(kType), ".d", padded.head_dim,
                                   kBend == Bend::softcap ? ".softcap" : ""),
                       .backend = "sm90",
                       .device = Device::Kind::cuda,
                       .operation = Operation::forward,
                       .dtype = kType,
                       .max_head_dim = padded.head_dim,
                       .tiles = padded.tiles,
                       .cost = cost,
                       .forward = padded.forward,
                       .backward = nullptr,
                       .bend = kBend,
                       .bitmaps = BitmapLayout::mma,
                       .min_compute_capability = 90,
                       .max_compute_capability = 90,
                       .rounds_weights = true,
                       .objection = objection,
                       .persistence = persistence,
                       .forward_workspace = device::forward_workspace_bytes,
                       .backward_workspace = nullptr});
  }
}

}  // namespace

// The tightest head_dim first: the first that has no objection is taken.
std::vector<KernelEntry> forward_entries() {
  std::vector<KernelEntry> entries;
  add_entries<DType::bf16, Bend::none>(entries);
  add_entries<DType::f16, Bend::none>(entries);
  add_entries<DType::bf16, Bend::softcap>(entries);
  add_entries<DType::f16, Bend::softcap>(entries);
  return entries;
}

}  // namespace keyhole::sm90
