// src/judge/select_trials.h
// The trials that `keyhole check` puts kernels that select keys to. A trial is a list of cases;
// each runs a kernel once.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "judge/judge_select.h"

namespace keyhole::judge {

struct SelectSubject {
  std::optional<Pattern> visible;  // not given: every entry
  Shape shape;                     // heads: the groups of the indexer
  bool one_plan_for_all = false;   // the pattern is the same for all groups of all batch entries
  std::optional<int64_t> head_dim = {};  // of the indexer, and of the attention it learns from
  uint64_t seed = 1;
  Device gpu = {};  // where kernels of a GPU run
};

using AnySelectCase = std::variant<SelectCase, LossCase>;

struct SelectTrial {
  const char* name;
  SelectOperation operation;
  std::vector<AnySelectCase> (*cases)(const SelectKernel& kernel, const SelectSubject& subject);
};

std::span<const SelectTrial> select_trials();

}  // namespace keyhole::judge
