// src/runtime/host_lists.h
// Lists for CPU kernels: a view, and the memory it points to.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "keyhole/lists.h"
#include "plan/lists.h"
#include "runtime/index_lists.h"

namespace keyhole {

class HostLists {
 public:
  // tile: for lists of tiles. q and k match the lists. A bad entry of the caller is an
  // Error(usage), which begins with `who`.
  HostLists(const Lists& lists, TileShape tile, const TensorView& q, const TensorView& k,
            int threads, bool with_transposed, const char* who = "attention");
  HostLists(const HostLists&) = delete;
  HostLists& operator=(const HostLists&) = delete;

  const PlanView& get() const { return view_; }

 private:
  void follow(const Plan& plan, TileShape tile, const TensorView& q, bool with_transposed);

  PlanView view_;
  // A plan made for one head of one batch entry serves every head: its views then need a group_of
  // that gives the same group to each of them.
  std::vector<TileView> tiles_;
  std::vector<GatherView> gathers_;
  std::deque<std::vector<int32_t>> groups_;  // a deque: its elements never move
  std::optional<IndexLists> indices_;
  TileLists tile_lists_;
};

}  // namespace keyhole
