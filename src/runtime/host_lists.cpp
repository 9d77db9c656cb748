// src/runtime/host_lists.cpp
#include "runtime/host_lists.h"

#include "plan/plan_state.h"
#include "runtime/tile_lists.h"

namespace keyhole {

HostLists::HostLists(const Lists& lists, TileShape tile, const TensorView& q, const TensorView& k,
                     int threads, bool with_transposed, const char* who) {
  if (const auto* plan = std::get_if<Plan>(&lists.get())) {
    follow(*plan, tile, q, with_transposed);
  } else if (const auto* keys = std::get_if<KeyListView>(&lists.get())) {
    view_ = indices_.emplace(key_table(*keys, q, k), threads, with_transposed, who).plan();
  } else {
    tile_lists_ = tile_lists_on_host(std::get<TileListView>(lists.get()), tile, q, k);
    if (with_transposed) transpose_by_counting(tile_lists_);
    tiles_.push_back(tile_lists_.view());
    view_ = {tiles_, {}};
  }
}

void HostLists::follow(const Plan& plan, TileShape tile, const TensorView& q,
                       bool with_transposed) {
  view_ = plan.state().view(tile, with_transposed);
  const Shape& shape = plan.shape();
  const int64_t heads = q.shape[0] * q.shape[1];
  if (shape.batch * shape.heads == heads) return;
  tiles_.assign(view_.tiles.begin(), view_.tiles.end());
  gathers_.assign(view_.gathers.begin(), view_.gathers.end());
  const auto repeat = [&](auto& part) {
    part.group_of = groups_.emplace_back(size_t(heads), part.group_of[0]).data();
  };
  for (TileView& part : tiles_) repeat(part);
  for (GatherView& part : gathers_) repeat(part);
  view_ = {tiles_, gathers_};
}

}  // namespace keyhole
