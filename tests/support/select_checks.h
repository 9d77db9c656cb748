// tests/support/select_checks.h
// Calls of select.h on the cases of src/judge, held against the definitions.
#pragma once

#include <optional>
#include <string>

#include "judge/judge_select.h"
#include "keyhole/pattern.h"
#include "runtime/select_registry.h"

namespace keyhole::test {

using judge::kNumLayouts, judge::Layout, judge::PoisonedTensor;
using judge::kNumScoreKinds, judge::ScoreKind;
using judge::LossCase, judge::LossProblem, judge::LossTensors;
using judge::SelectCase, judge::SelectProblem, judge::SelectTensors;

// A row of a table of patterns: "" is none.
inline std::optional<Pattern> pattern_or_none(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(parse(text));
}

// Empty, or how a result differs from the definition. Lists of select_keys are those of the scores
// of index_scores, in one step and in two.
std::string check_scores(const SelectCase& c);
std::string check_top_k(const SelectCase& c);
std::string check_select_keys(const SelectCase& c);
std::string check_loss(const LossCase& c);  // both directions
// The kernel that runs for such tensors and options.
const SelectKernel& loss_kernel(SelectOperation operation, const LossTensors& tensors);
// Whether both directions run on this backend.
bool loss_runs_on(const std::string& backend, const LossTensors& tensors);

}  // namespace keyhole::test
