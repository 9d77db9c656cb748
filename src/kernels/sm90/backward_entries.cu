// src/kernels/sm90/backward_entries.cu
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/sm80/backward_entries.h"
#include "kernels/sm90/backward_config.h"
#include "kernels/sm90/backward_entries.h"
#include "kernels/sm90/backward_launch.h"

namespace keyhole::sm90 {
namespace {

// A pair of a fine tile, which sm80's kernels follow, takes kFine hundredths of the time of one in
// a tile that the kernel here follows; measured on an H200 with dense attention: 1.8 times as long
// at head_dim 128. There it is 2, so that half as many pairs are not worth it: where lists are so
// short that a smaller tile could matter, what comes and goes beside the products decides.
template <int kFine>
double cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  return num_tiles * tile.q * tile.k * (tile.k >= 128 ? 1 : kFine / 100.);
}

// What a list costs beside its steps, in steps, is arithmetic, not measured: its first scores and
// weights have nothing to hide behind, and nor have dk and dv on their way to memory.
constexpr double kStepsPerList = 1;

Persistence persistence(const TileShape& tile) {
  return {.ctas_per_processor = tile.k >= 128 ? 1 : 0,  // sm80's kernels follow fine tiles
          .tiles_per_item = kStepsPerList,
          .cache_share = device::kBackwardCacheShare};
}

std::string objection(const Request& request) {
  return request.why_no_boxes.empty() ? sm80::backward_objection(request) : request.why_no_boxes;
}

using Backward = void (*)(const BackwardArgs& args);
struct Replaced {
  int64_t head_dim;
  TileShape tile;  // what the kernel here follows
  double (*cost)(const TileShape& tile, double num_tiles, double num_lists);
  Backward bf16, f16;
  int64_t (*workspace)(const BackwardArgs& args);
};
const Replaced kReplaced[] = {
    {64,
     {KeysDim64::tile_q, KeysDim64::tile_k},
     cost<210>,
     backward_d64<__nv_bfloat16>,
     backward_d64<__half>,
     backward_d64_workspace},
    {96,
     {KeysDim128::tile_q, KeysDim128::tile_k},
     cost<100>,
     backward_d96<__nv_bfloat16>,
     backward_d96<__half>,
     backward_d128_workspace},
    {128,
     {KeysDim128::tile_q, KeysDim128::tile_k},
     cost<200>,
     backward_d128<__nv_bfloat16>,
     backward_d128<__half>,
     backward_d128_workspace},
};

}  // namespace

// Those of sm80, where a kernel here does part of the work.
std::vector<KernelEntry> backward_entries() {
  std::vector<KernelEntry> entries;
  for (KernelEntry entry : sm80::backward_entries()) {
    for (const Replaced& replaced : kReplaced) {
      if (entry.max_head_dim != replaced.head_dim) continue;
      KEYHOLE_ASSERT(std::ranges::count(entry.tiles, replaced.tile) == 1, entry.name,
                     " does not offer the tile of sm90");
      entry.name = say("sm90.backward.", to_string(entry.dtype), ".d", replaced.head_dim);
      entry.backend = "sm90";
      entry.cost = replaced.cost;
      entry.objection = objection;
      entry.persistence = persistence;
      entry.backward = entry.dtype == DType::bf16 ? replaced.bf16 : replaced.f16;
      entry.backward_workspace = replaced.workspace;
      entry.min_compute_capability = entry.max_compute_capability = 90;
      entries.push_back(entry);
    }
  }
  return entries;
}

}  // namespace keyhole::sm90
