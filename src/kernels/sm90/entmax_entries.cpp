// src/kernels/sm90/entmax_entries.cpp
#include "kernels/sm90/entmax_entries.h"

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/entmax_backward_call.h"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/entmax_objection.h"
#include "kernels/mma/entmax_lists.h"
#include "kernels/sm90/backward_config.h"
#include "kernels/sm90/entmax_backward_launch.h"
#include "kernels/sm90/entmax_launch.h"
#include "kernels/sm90/entmax_scan_config.h"

namespace keyhole::sm90 {
namespace {

// The fixed cost of a list, in tiles: the bound from the look, and the lists that are written.
constexpr double kTilesPerList = 8;

double cost(const TileShape& tile, double num_tiles, double num_lists) {
  return double(tile.q) * double(tile.k) * (num_tiles + kTilesPerList * num_lists);
}

Persistence persistence(const TileShape&) { return {1, kTilesPerList, 0.6}; }

std::string objection(const Request& request) {
  // TMA reads fp32 from the workspace, where it was rounded.
  if (request.dtype != DType::f32 && !request.why_no_tma.empty()) return request.why_no_tma;
  return device::scan_objection(request, kEntmaxSharedBytes);
}

// --- backward, with long rows over tiles ---

double tiles_cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  return num_tiles * tile.q * tile.k;
}
// Of the launch by key tile, as in sm90.backward.
Persistence tiles_persistence(const TileShape&) {
  return {.ctas_per_processor = 1, .tiles_per_item = 1, .cache_share = device::kBackwardCacheShare};
}
std::string tiles_objection(const Request& request) {
  if (request.deterministic) return "adds up dq in no fixed order";
  if (request.normalizer.top_k > 0) return "takes no top_k";
  if (request.has_softcap) return "takes no softcap";
  if (request.lists != nullptr && request.lists->has_key_lists()) return "takes no key lists";
  if (!request.why_no_tma.empty()) return request.why_no_tma;
  return device::row_objection(request, kKeysSharedBytes);
}
BackwardSchedule tiles_schedule(const Request& request, const TileShape& tile) {
  if (request.deterministic) return device::entmax_schedule(request, tile);  // by lists alone
  return {.dq = DqOrder::atomic, .heads = SumOrder::atomic, .key_lists = KeyListOrder::atomic};
}

template <DType kType, class C>
KernelEntry tiles_backward_entry() {
  return {.name = say("sm90.entmax_backward.", to_string(kType), ".d", C::head_dim),
          .backend = "sm90",
          .device = Device::Kind::cuda,
          .operation = Operation::backward,
          .dtype = kType,
          .max_head_dim = C::head_dim,
          .tiles = {{C::tile_q, C::tile_k}},
          .cost = tiles_cost,
          .forward = nullptr,
          .backward = run_entmax_backward<kType, C::head_dim>,
          .weights = Weights::sparse,
          .schedule = tiles_schedule,
          .bitmaps = BitmapLayout::mma,
          .min_compute_capability = 90,
          .max_compute_capability = 90,
          .rounds_weights = true,
          .objection = tiles_objection,
          .persistence = tiles_persistence,
          .forward_workspace = nullptr,
          .backward_workspace = device::entmax_backward_workspace_bytes};
}

// --- backward, by lists alone ---

std::string lists_objection(const Request& request) { return device::row_objection(request, 0); }
// Its bitmaps have the layout of this backend's forward pass.
void entmax_backward(const BackwardArgs& args) {
  device::run_entmax_backward(args, BitmapLayout::mma, &mma::entmax_list_launches());
}
KernelEntry backward_entry(DType dtype) {
  return {.name = say("sm90.entmax_backward.", to_string(dtype)),
          .backend = "sm90",
          .device = Device::Kind::cuda,
          .operation = Operation::backward,
          .dtype = dtype,
          .max_head_dim = EntmaxScanDim128::head_dim,
          .tiles = {scan_tile<EntmaxScanDim64>(), scan_tile<EntmaxScanDim128>()},
          .cost = cost,
          .forward = nullptr,
          .backward = entmax_backward,
          .weights = Weights::sparse,
          .schedule = device::entmax_schedule,
          .bitmaps = BitmapLayout::mma,
          .min_compute_capability = 90,
          .max_compute_capability = 90,
          .rounds_weights = true,  // as the forward pass does
          .objection = lists_objection,
          .forward_workspace = nullptr,
          .backward_workspace = device::entmax_backward_workspace_bytes};
}

template <DType kType>
void add_forward_entries(std::vector<KernelEntry>& entries) {
  struct Padded {
    int64_t head_dim;
    TileShape tile;
    void (*forward)(const ForwardArgs& args);
  };
  for (const Padded& padded :
       {Padded{64, scan_tile<EntmaxScanDim64>(), run_entmax_forward<kType, 64>},
        Padded{128, scan_tile<EntmaxScanDim128>(), run_entmax_forward<kType, 128>}}) {
    entries.push_back({.name = say("sm90.entmax_forward.", to_string(kType), ".d", padded.head_dim),
                       .backend = "sm90",
                       .device = Device::Kind::cuda,
                       .operation = Operation::forward,
                       .dtype = kType,
                       .max_head_dim = padded.head_dim,
                       .tiles = {padded.tile},
                       .cost = cost,
                       .forward = padded.forward,
                       .backward = nullptr,
                       .weights = Weights::sparse,
                       .bitmaps = BitmapLayout::mma,
                       .min_compute_capability = 90,
                       .max_compute_capability = 90,
                       .rounds_weights = kType != DType::f32,  // of long rows, over tiles
                       .objection = objection,
                       .persistence = persistence,
                       .forward_workspace = device::entmax_scan_workspace_bytes,
                       .backward_workspace = nullptr});
  }
}
template <DType kType>
void add_entries(std::vector<KernelEntry>& entries) {
  add_forward_entries<kType>(entries);
  // In this order: dispatch takes the first one of a backend that has no objection.
  entries.push_back(tiles_backward_entry<kType, KeysDim64>());
  entries.push_back(tiles_backward_entry<kType, KeysDim128>());
  entries.push_back(backward_entry(kType));
}

}  // namespace

std::vector<KernelEntry> entmax_entries() {
  std::vector<KernelEntry> entries;
  add_entries<DType::bf16>(entries);
  add_entries<DType::f16>(entries);
  add_forward_entries<DType::f32>(entries);  // backward: the launches of `simple`
  return entries;
}

}  // namespace keyhole::sm90
