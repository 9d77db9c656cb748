// src/judge/judge_select.h
// What kernels that select keys made of a case, held against the definitions: scores and losses
// within rounding, lists exactly.
#pragma once

#include <string>

#include "judge/judge.h"
#include "judge/loss_problem.h"
#include "judge/select_problem.h"
#include "runtime/select_registry.h"

namespace keyhole::judge {

// product_error: SelectKernel::product_error.
Finding judge_scores(const SelectProblem& p, double product_error);
// The lists beside those of these scores: p.given_scores or p.scores. The error counts the places
// that differ.
Finding judge_lists(const SelectProblem& p, const TensorView& scores, bool takes_short_rows);
Finding judge_loss(const LossProblem& p, const ReferenceIndexLoss& want);
// rounds_gradients: SelectKernel::rounds_gradients.
Finding judge_gradients(const LossProblem& p, const ReferenceIndexLoss& want,
                        bool rounds_gradients);

// Why a kernel does not take the tensors of a case; empty: it does.
std::string refusal_of(const SelectKernel& kernel, const SelectCase& c);
std::string refusal_of(const SelectKernel& kernel, const LossCase& c);

// Runs this kernel, which must take the case. Lists of select_keys are judged by the scores of
// its index_scores; a backward pass starts from the statistics of the definition.
Finding run_and_judge(const SelectKernel& kernel, const SelectCase& c);
Finding run_and_judge(const SelectKernel& kernel, const LossCase& c);

}  // namespace keyhole::judge
