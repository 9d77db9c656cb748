// src/kernels/sm90/forward_entries.cu
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "kernels/device/row_objection.h"
#include "kernels/sm80/forward_entries.h"
#include "kernels/sm90/forward_config.h"
#include "kernels/sm90/forward_entries.h"
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
  if (request.has_softcap) return "has no softcap";
  if (!request.why_no_boxes.empty()) return request.why_no_boxes;
  return device::row_objection(request, kForwardSharedBytes);
}

using Forward = void (*)(const ForwardArgs& args);
struct Replaced {
  int64_t head_dim;
  std::vector<TileShape> tiles;
  Forward bf16, f16;
};

}  // namespace

// Those of sm80, which follow bitmaps of the same layout and share the passes around the kernel,
// with kernels, tiles and objections of their own.
std::vector<KernelEntry> forward_entries() {
  const Replaced all[] = {
      {64,
       {tile_of<ForwardDim64>(), tile_of<ForwardDim64Short>()},
       forward_d64<__nv_bfloat16>,
       forward_d64<__half>},
      {96, {tile_of<ForwardDim96>()}, forward_d96<__nv_bfloat16>, forward_d96<__half>},
      {128,
       {tile_of<ForwardDim128>(), tile_of<ForwardDim128Short>()},
       forward_d128<__nv_bfloat16>,
       forward_d128<__half>},
      {192, {tile_of<ForwardDim192>()}, forward_d192<__nv_bfloat16>, forward_d192<__half>},
      {256, {tile_of<ForwardDim256>()}, forward_d256<__nv_bfloat16>, forward_d256<__half>},
  };
  std::vector<KernelEntry> entries;
  for (KernelEntry entry : sm80::forward_entries()) {
    const auto* replaced = std::ranges::find(all, entry.max_head_dim, &Replaced::head_dim);
    KEYHOLE_ASSERT(replaced != std::end(all), entry.name, " has no kernel in sm90");
    entry.name = say("sm90.forward.", to_string(entry.dtype), ".d", replaced->head_dim);
    entry.backend = "sm90";
    entry.tiles = replaced->tiles;
    entry.cost = cost;
    entry.persistence = persistence;
    entry.objection = objection;
    entry.forward = entry.dtype == DType::bf16 ? replaced->bf16 : replaced->f16;
    entry.min_compute_capability = entry.max_compute_capability = 90;
    entries.push_back(entry);
  }
  return entries;
}

}  // namespace keyhole::sm90
