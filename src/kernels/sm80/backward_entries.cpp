// src/kernels/sm80/backward_entries.cpp
#include "kernels/sm80/backward_entries.h"

#include <string>

#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/row_objection.h"
#include "kernels/device/span_lists.h"
#include "kernels/sm80/backward_config.h"
#include "kernels/sm80/backward_launch.h"

namespace keyhole::sm80 {
namespace {

// The unit is a pair in the large tile of the sm90 kernel, because both compete on Hopper and have
// the same rank. A pair of a fine tile (64 keys instead of 128) takes as many products, but twice
// the copies of q and dout and twice the additions to dq. On the other hand two CTAs share an SM,
// and one computes while the other waits. kLarge, kFine: hundredths, measured on an H200 with dense
// attention. At head_dim 128 a fine tile counts as 2, so that half as many pairs are not worth it:
// for lists that short, the loads and stores decide, not the products. At 192 and 256 the unit is
// a pair of sm90's kernel for wide heads.
template <int kLarge, int kFine>
double cost(const TileShape& tile, double num_tiles, double /*num_lists*/) {
  return num_tiles * tile.q * tile.k * (tile.k >= 128 ? kLarge : kFine) / 100.;
}

std::string objection(const Request& request) {
  return device::row_objection(request, kLeastBackwardShared);
}

// One launch adds up dq. Query heads that share a kv head add to shared sums of its dk and dv, and
// so do key lists.
BackwardSchedule in_any_order(const Request& request, const TileShape& /*tile*/) {
  return {.dq = DqOrder::atomic,
          .heads = request.shares_kv_heads ? SumOrder::atomic : SumOrder::fixed,
          .key_lists = KeyListOrder::atomic,
          .splits_lists = true};
}
std::string objection_in_any_order(const Request& request) {
  return request.deterministic ? "adds up dq in no fixed order" : objection(request);
}
// A launch over queries computes dq; nothing is scattered. Query heads that share a kv head are
// added up list by list.
BackwardSchedule in_order(const Request& request, const TileShape& /*tile*/) {
  return {.dq = DqOrder::by_queries,
          .heads = SumOrder::fixed,
          .key_lists = device::key_lists_in_order(request),
          .splits_lists = !request.shares_kv_heads};
}

template <class C>
TileShape tile_of() {
  return {C::tile_q, C::tile_k};
}

// What differs between the two orders of addition.
struct Order {
  const char* suffix;
  int rank;
  BackwardSchedule (*schedule)(const Request& request, const TileShape& tile);
  std::string (*objection)(const Request& request);
};
constexpr Order kInAnyOrder = {"", 0, in_any_order, objection_in_any_order};
constexpr Order kInOrder = {".in_order", 1, in_order, objection};

using Cost = double (*)(const TileShape& tile, double num_tiles, double num_lists);

// Costs of the other head_dims are those of kInAnyOrder. In order they decide nothing: there is one
// tile, and no other backend has that rank.
template <DType kType>
void add_entries(std::vector<KernelEntry>& entries, const Order& order, Cost cost_of_64,
                 Cost cost_of_128) {
  struct Padded {
    int64_t head_dim;
    std::vector<TileShape> tiles;
    Cost cost;
    void (*backward)(const BackwardArgs& args);
  };
  const Padded all[] = {
      {64, {tile_of<KeysDim64>(), tile_of<KeysDim64Fine>()}, cost_of_64, run_backward<kType, 64>},
      {96, {tile_of<KeysDim96>()}, cost<200, 200>, run_backward<kType, 96>},
      {128,
       {tile_of<KeysDim128>(), tile_of<KeysDim128Fine>()},
       cost_of_128,
       run_backward<kType, 128>},
      {192, {tile_of<KeysDim192>()}, cost<169, 169>, run_backward<kType, 192>},
      {256, {tile_of<KeysDim256>()}, cost<188, 188>, run_backward<kType, 256>},
  };
  for (const Padded& padded : all) {
    entries.push_back(
        {.name = say("sm80.backward.", to_string(kType), ".d", padded.head_dim, order.suffix),
         .backend = "sm80",
         .device = Device::Kind::cuda,
         .operation = Operation::backward,
         .dtype = kType,
         .max_head_dim = padded.head_dim,
         .tiles = padded.tiles,
         .cost = padded.cost,
         .forward = nullptr,
         .backward = padded.backward,
         .rank = order.rank,
         .bend = Bend::none,
         .schedule = order.schedule,
         .bitmaps = BitmapLayout::mma,
         .min_compute_capability = 80,
         .rounds_weights = true,
         .objection = order.objection,
         .forward_workspace = nullptr,
         .backward_workspace = device::backward_workspace_bytes});
  }
}

template <DType kType>
void add_both_orders(std::vector<KernelEntry>& entries) {
  add_entries<kType>(entries, kInAnyOrder, cost<191, 210>, cost<204, 200>);
  // When dq has a launch of its own, a fine tile of head_dim 128 is only 5 to 7 % slower on dense
  // attention.
  add_entries<kType>(entries, kInOrder, cost<100, 110>, cost<100, 107>);
}

}  // namespace

// Smallest padded head_dim first: dispatch takes the first entry without an objection.
std::vector<KernelEntry> backward_entries() {
  std::vector<KernelEntry> entries;
  add_both_orders<DType::bf16>(entries);
  add_both_orders<DType::f16>(entries);
  return entries;
}

}  // namespace keyhole::sm80
