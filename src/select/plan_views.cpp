// src/select/plan_views.cpp
#include "select/plan_views.h"

#include "plan/plan_state.h"

namespace keyhole {
namespace {

// The kernel's tile, or one that a plan from a file has if it cannot be compiled for another.
TileShape tile_for(const SelectKernel& kernel, const Lists& lists) {
  const auto* plan = std::get_if<Plan>(&lists.get());
  if (plan == nullptr || plan->state().can_compile(kernel.tile)) return kernel.tile;
  return plan->state().usual_tile();
}

PlanView follow(CallSite& site, const Lists& lists, const SelectKernel& kernel, int64_t batch,
                int64_t groups, int64_t q_len, int64_t entries, const char* who) {
  return site.follow(lists, {.tile = tile_for(kernel, lists),
                             .bitmaps = kernel.bitmaps,
                             .q = TensorView(nullptr, DType::f32, {batch, groups, q_len, 1}),
                             .k = TensorView(nullptr, DType::f32, {batch, groups, entries, 1}),
                             .who = who});
}

}  // namespace

std::optional<PlanView> follow(CallSite& site, const std::optional<Plan>& plan,
                               const SelectKernel& kernel, const TensorView& scores) {
  if (!plan) return std::nullopt;
  const int64_t* const n = scores.shape;
  return follow(site, *plan, kernel, n[0], n[1], n[2], n[3], "selection");
}

PlanView follow(CallSite& site, const Lists& lists, const SelectKernel& kernel,
                const IndexerView& indexer, const AttentionTarget& target, const char* who) {
  return follow(site, lists, kernel, indexer.q.shape[0], indexer.k.shape[1], indexer.q.shape[2],
                target.k.shape[2], who);
}

}  // namespace keyhole
