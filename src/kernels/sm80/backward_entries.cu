// src/kernels/sm80/backward_entries.cu
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string>

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/row_objection.h"
#include "kernels/sm80/backward_config.h"
#include "kernels/sm80/backward_entries.h"
#include "kernels/sm80/backward_launch.h"

namespace keyhole::sm80 {
namespace {

// A pair of a fine tile (64 keys where 128 could be) takes as many products, but twice the copies
// of q and dout and twice the additions to dq; on the other hand two CTAs of it share an SM, and
// one computes while the other waits. kFine: hundredths of the time of a large tile, measured on
// an H200 with dense attention.
template <int kFine>
double cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  return num_tiles * tile.q * tile.k * (tile.k >= 128 ? 1 : kFine / 100.);
}

int64_t workspace(const BackwardArgs& args) {
  return device::backward_workspace_bytes(args, needs_of(args));
}

template <class C>
TileShape tile_of() {
  return {C::tile_q, C::tile_k};
}

template <class T>
void add_entries(std::vector<KernelEntry>& entries, DType dtype) {
  struct Padded {
    int64_t head_dim;
    std::vector<TileShape> tiles;
    double (*cost)(const TileShape& tile, double num_tiles, double num_lists);
    void (*backward)(const BackwardArgs& args);
  };
  const Padded all[] = {
      {64, {tile_of<KeysDim64>(), tile_of<KeysDim64Fine>()}, cost<110>, backward_d64<T>},
      {96, {tile_of<KeysDim96>()}, cost<100>, backward_d96<T>},
      {128, {tile_of<KeysDim128>(), tile_of<KeysDim128Fine>()}, cost<98>, backward_d128<T>},
      {192, {tile_of<KeysDim192>()}, cost<100>, backward_d192<T>},
      {256, {tile_of<KeysDim256>()}, cost<100>, backward_d256<T>},
  };
  for (const Padded& padded : all) {
    entries.push_back({.name = say("sm80.backward.", to_string(dtype), ".d", padded.head_dim),
                       .backend = "sm80",
                       .device = Device::Kind::cuda,
                       .operation = Operation::backward,
                       .dtype = dtype,
                       .max_head_dim = padded.head_dim,
                       .tiles = padded.tiles,
                       .cost = padded.cost,
                       .forward = nullptr,
                       .backward = padded.backward,
                       .bitmaps = BitmapLayout::mma,
                       .min_compute_capability = 80,
                       .rounds_weights = true,
                       .objection = backward_objection,
                       .forward_workspace = nullptr,
                       .backward_workspace = workspace});
  }
}

}  // namespace

std::string backward_objection(const Request& request) {
  if (request.has_softcap) return "does not take a softcap";
  return device::row_objection(request, kLeastBackwardShared);
}

// The tightest head_dim first: the first that has no objection is taken.
std::vector<KernelEntry> backward_entries() {
  std::vector<KernelEntry> entries;
  add_entries<__nv_bfloat16>(entries, DType::bf16);
  add_entries<__half>(entries, DType::f16);
  return entries;
}

}  // namespace keyhole::sm80
