// src/kernels/sm80/entmax_entries.cpp
#include "kernels/sm80/entmax_entries.h"

#include "base/check.h"
#include "kernels/device/entmax_backward_call.h"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/entmax_objection.h"
#include "kernels/mma/entmax_lists.h"
#include "kernels/sm80/config.h"
#include "kernels/sm80/entmax_launch.h"
#include "kernels/sm80/entmax_scan_config.h"

namespace keyhole::sm80 {
namespace {

// The fixed cost of a list, in tiles: the bound from the look, and the lists that are written.
// Estimated from sm90's, not measured yet.
constexpr double kTilesPerList = 8;

double cost(const TileShape& tile, double num_tiles, double num_lists) {
  return double(tile.q) * double(tile.k) * (num_tiles + kTilesPerList * num_lists);
}

Persistence persistence(const TileShape&) { return {kScanCtasPerSm, kTilesPerList, 0.25}; }

std::string objection(const Request& request) {
  return device::scan_objection(request, kShared99KiB);
}

template <DType kType, class C>
KernelEntry forward_entry() {
  return {.name = say("sm80.entmax_forward.", to_string(kType), ".d", C::head_dim),
          .backend = "sm80",
          .device = Device::Kind::cuda,
          .operation = Operation::forward,
          .dtype = kType,
          .max_head_dim = C::head_dim,
          .tiles = {scan_tile<C>()},
          .cost = cost,
          .forward = run_entmax_forward<kType, C::head_dim>,
          .backward = nullptr,
          .rank = 1,
          .weights = Weights::sparse,
          .bitmaps = BitmapLayout::mma,
          .min_compute_capability = 80,
          .rounds_weights = kType != DType::f32,  // to two parts of 16 bits
          .objection = objection,
          .persistence = persistence,
          .forward_workspace = device::entmax_scan_workspace_bytes,
          .backward_workspace = nullptr};
}

// By lists. Its bitmaps have the layout of this backend's forward pass.
std::string backward_objection(const Request& request) {
  return device::row_objection(request, kShared99KiB);
}
void entmax_backward(const BackwardArgs& args) {
  device::run_entmax_backward(args, BitmapLayout::mma, &mma::entmax_list_launches());
}
KernelEntry backward_entry(DType dtype) {
  return {.name = say("sm80.entmax_backward.", to_string(dtype)),
          .backend = "sm80",
          .device = Device::Kind::cuda,
          .operation = Operation::backward,
          .dtype = dtype,
          .max_head_dim = EntmaxScanDim128::head_dim,
          .tiles = {scan_tile<EntmaxScanDim128>()},
          .cost = cost,
          .forward = nullptr,
          .backward = entmax_backward,
          .rank = 1,
          .weights = Weights::sparse,
          .schedule = device::entmax_schedule,
          .bitmaps = BitmapLayout::mma,
          .min_compute_capability = 80,
          .rounds_weights = true,  // to two parts of 16 bits
          .objection = backward_objection,
          .forward_workspace = nullptr,
          .backward_workspace = device::entmax_backward_workspace_bytes};
}

template <DType kType>
void add_forward_entries(std::vector<KernelEntry>& entries) {
  entries.push_back(forward_entry<kType, EntmaxScanDim64>());
  entries.push_back(forward_entry<kType, EntmaxScanDim128>());
}
template <DType kType>
void add_entries(std::vector<KernelEntry>& entries) {
  add_forward_entries<kType>(entries);
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

}  // namespace keyhole::sm80
