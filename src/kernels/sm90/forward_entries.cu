// src/kernels/sm90/forward_entries.cu
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "base/check.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/row_objection.h"
#include "kernels/sm90/forward_config.h"
#include "kernels/sm90/forward_entries.h"
#include "kernels/sm90/forward_launch.h"

namespace keyhole::sm90 {
namespace {

// What a list costs beside its tiles, in tiles: its first one has nothing to hide behind, and its
// last values nothing in front of them. From the times of windows and blocks at head_dim 128 on an
// H200: 1.37 us a tile and 2.0 us a list in tiles of 128 x 128, 0.415 and 1.13 in those of 64 x 64.
constexpr double kTilesPerList = 1.5, kTilesPerShortList = 2.7;
// A pair in a tile of 64 x 64 against one in the large tile; from the same times.
constexpr double kShortPair = 1.21;

bool is_short(const TileShape& tile) { return tile.q == 64; }

double cost(const TileShape& tile, double num_tiles, double num_lists) {
  const double pairs = double(tile.q) * double(tile.k);
  return is_short(tile) ? kShortPair * pairs * (num_tiles + kTilesPerShortList * num_lists)
                        : pairs * (num_tiles + kTilesPerList * num_lists);
}

Persistence persistence(const TileShape& tile) {
  return is_short(tile) ? Persistence{ForwardDim128Short::ctas_per_sm, kTilesPerShortList}
                        : Persistence{ForwardDim128::ctas_per_sm, kTilesPerList};
}

std::string objection(const Request& request) {
  if (request.has_softcap) return "has no softcap";
  if (!request.why_no_boxes.empty()) return request.why_no_boxes;
  return device::row_objection(request, kForwardSharedBytes);
}

template <class T>
void add_entries(std::vector<KernelEntry>& entries, DType dtype) {
  struct Padded {
    int64_t head_dim;
    std::vector<TileShape> tiles;
    void (*forward)(const ForwardArgs& args);
  };
  const Padded all[] = {
      {64, {tile_of<ForwardDim64>(), tile_of<ForwardDim64Short>()}, forward_d64<T>},
      {96, {tile_of<ForwardDim96>()}, forward_d96<T>},
      {128, {tile_of<ForwardDim128>(), tile_of<ForwardDim128Short>()}, forward_d128<T>},
      {192, {tile_of<ForwardDim192>()}, forward_d192<T>},
      {256, {tile_of<ForwardDim256>()}, forward_d256<T>},
  };
  for (const Padded& padded : all) {
    entries.push_back({.name = say("sm90.forward.", to_string(dtype), ".d", padded.head_dim),
                       .backend = "sm90",
                       .device = Device::Kind::cuda,
                       .operation = Operation::forward,
                       .dtype = dtype,
                       .max_head_dim = padded.head_dim,
                       .tiles = padded.tiles,
                       .cost = cost,
                       .forward = padded.forward,
                       .backward = nullptr,
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
  add_entries<__nv_bfloat16>(entries, DType::bf16);
  add_entries<__half>(entries, DType::f16);
  return entries;
}

}  // namespace keyhole::sm90
