// src/kernels/sm90/entmax_entries.cpp
#include "kernels/sm90/entmax_entries.h"

#include "base/check.h"
#include "kernels/device/entmax_backward_call.h"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/row_objection.h"
#include "kernels/sm90/entmax_launch.h"
#include "kernels/sm90/entmax_scan_config.h"

namespace keyhole::sm90 {
namespace {

// The fixed cost of a list, in tiles: the bound from the look, and the lists that are written.
constexpr double kTilesPerList = 4;

double cost(const TileShape& tile, double num_tiles, double num_lists) {
  return double(tile.q) * double(tile.k) * (num_tiles + kTilesPerList * num_lists);
}

Persistence persistence(const TileShape&) { return {1, kTilesPerList, 0.25}; }

std::string objection(const Request& request) {
  if (!request.why_no_tma.empty()) return request.why_no_tma;
  if (request.normalizer.top_k > kSupportKeys) return say("takes top_k up to ", kSupportKeys);
  return device::row_objection(request, kEntmaxSharedBytes);
}

// The pass of every GPU. Its bitmaps have the layout of this backend's forward pass.
void entmax_backward(const BackwardArgs& args) {
  device::run_entmax_backward(args, BitmapLayout::mma);
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
          .forward_workspace = nullptr,
          .backward_workspace = device::entmax_backward_workspace_bytes};
}

template <DType kType>
void add_entries(std::vector<KernelEntry>& entries) {
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
                       .rounds_weights = true,  // of long rows, over tiles
                       .objection = objection,
                       .persistence = persistence,
                       .forward_workspace = device::entmax_scan_workspace_bytes,
                       .backward_workspace = nullptr});
  }
  entries.push_back(backward_entry(kType));
}

}  // namespace

std::vector<KernelEntry> entmax_entries() {
  std::vector<KernelEntry> entries;
  add_entries<DType::bf16>(entries);
  add_entries<DType::f16>(entries);
  return entries;
}

}  // namespace keyhole::sm90
