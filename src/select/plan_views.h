// src/select/plan_views.h
// Plans and lists of a selection as its kernels follow them.
#pragma once

#include <optional>

#include "keyhole/select.h"
#include "runtime/call_site.h"
#include "runtime/select_registry.h"

namespace keyhole {

// A plan for [batch, groups, q_len, entries], or for one group of one batch entry, which serves
// all. Empty if no plan is given.
std::optional<PlanView> follow(CallSite& site, const std::optional<Plan>& plan,
                               const SelectKernel& kernel, const TensorView& scores);

// The lists of the attention that an indexer learns from, with one head per group. who: begins the
// error about a bad entry.
PlanView follow(CallSite& site, const Lists& lists, const SelectKernel& kernel,
                const IndexerView& indexer, const AttentionTarget& target, const char* who);

inline const PlanView* pointer_to(const std::optional<PlanView>& view) {
  return view ? &*view : nullptr;
}

}  // namespace keyhole
