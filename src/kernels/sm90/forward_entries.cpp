// src/kernels/sm90/forward_entries.cpp
#include "kernels/sm90/forward_entries.h"

#include <string>

#include "base/check.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/row_objection.h"
#include "kernels/sm90/forward_config.h"
#include "kernels/sm90/forward_launch.h"
#include "kernels/sm90/latent_forward_launch.h"

namespace keyhole::sm90 {
namespace {

// The fixed cost of a list, in tiles: nothing in its own list hides the weights of its first tile.
// From times of windows and blocks at head_dim 128 on an H200, taken before lists were overlapped
// and not repeated since.
constexpr double kTilesPerList = 1.5, kTilesPerShortList = 2.7;
// The cost of a pair in a 64 x 64 tile, relative to the large tile; from the same times.
constexpr double kShortPair = 1.21;

bool is_short(const TileShape& tile) { return tile.q == 64; }

double cost(const TileShape& tile, double num_tiles, double num_lists) {
  const double pairs = double(tile.q) * double(tile.k);
  return is_short(tile) ? kShortPair * pairs * (num_tiles + kTilesPerShortList * num_lists)
                        : pairs * (num_tiles + kTilesPerList * num_lists);
}

// The share of the L2 cache that the keys and values of a section may fill. Measured: with 0.6,
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
  // With a softcap there is only the large tile (forward.cuh).
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

std::string latent_objection(const Request& request) {
  if (!request.why_not_latent.empty()) return request.why_not_latent;
  if (request.v_head_dim > kLatentValueDim) return say("has head_dim of v up to ", kLatentValueDim);
  if (request.has_sink) return "has no sink";
  return device::row_objection(request, kForwardSharedBytes);
}

// Latent form has no tiles, so there is one choice, whatever it costs.
template <DType kType>
KernelEntry latent_entry() {
  return {.name = say("sm90.forward.", to_string(kType), ".latent"),
          .backend = "sm90",
          .device = Device::Kind::cuda,
          .operation = Operation::forward,
          .dtype = kType,
          .max_head_dim = kLatentHeadDim,
          .tiles = {{128, 128}},
          .cost = cost,
          .forward = run_latent_forward<kType>,
          .backward = nullptr,
          .bend = Bend::none,
          .bitmaps = BitmapLayout::mma,
          .min_compute_capability = 90,
          .max_compute_capability = 90,
          .rounds_weights = true,
          .objection = latent_objection,
          .forward_workspace = device::forward_workspace_bytes,
          .backward_workspace = nullptr};
}

}  // namespace

// Latent form, then smallest padded head_dim first: dispatch takes the first entry without an
// objection.
std::vector<KernelEntry> forward_entries() {
  std::vector<KernelEntry> entries = {latent_entry<DType::bf16>(), latent_entry<DType::f16>()};
  add_entries<DType::bf16, Bend::none>(entries);
  add_entries<DType::f16, Bend::none>(entries);
  add_entries<DType::bf16, Bend::softcap>(entries);
  add_entries<DType::f16, Bend::softcap>(entries);
  return entries;
}

}  // namespace keyhole::sm90
