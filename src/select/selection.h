// src/select/selection.h
// Selections on any backend: chooses kernels, makes views of plans, and divides long calls. The
// arguments have been checked (api/check_select.h).
#pragma once

#include <string>

#include "keyhole/select.h"
#include "runtime/select_registry.h"

namespace keyhole {

void run_index_scores(const IndexerView& indexer, const TensorView& scores,
                      const SelectOptions& options);
void run_top_k(const TensorView& scores, const Selection& selection, const SelectOptions& options);
void run_select_keys(const IndexerView& indexer, const Selection& selection,
                     const SelectOptions& options);

// Scores, then the choice, some queries at a time: what run_select_keys does where no kernel does
// both at once. most_bytes: of scratch memory, where a query does not need more.
void run_select_keys_in_two_steps(const IndexerView& indexer, const Selection& selection,
                                  const SelectOptions& options, int64_t most_bytes);

void run_index_loss_forward(const IndexerView& indexer, const AttentionTarget& target,
                            const Lists& lists, const TensorView& loss, const TensorView& stats,
                            const IndexLossOptions& options);
void run_index_loss_backward(const TensorView& dloss, const IndexerView& indexer,
                             const AttentionTarget& target, const Lists& lists,
                             const TensorView& stats, const IndexGradients& gradients,
                             const IndexLossOptions& options);

// The same with a given kernel, which must take the call.
void run_index_scores(const SelectKernel& kernel, const IndexerView& indexer,
                      const TensorView& scores, const SelectOptions& options);
void run_top_k(const SelectKernel& kernel, const TensorView& scores, const Selection& selection,
               const SelectOptions& options);
void run_select_keys(const SelectKernel& kernel, const IndexerView& indexer,
                     const Selection& selection, const SelectOptions& options);
void run_index_loss_forward(const SelectKernel& kernel, const IndexerView& indexer,
                            const AttentionTarget& target, const Lists& lists,
                            const TensorView& loss, const TensorView& stats,
                            const IndexLossOptions& options);
void run_index_loss_backward(const SelectKernel& kernel, const TensorView& dloss,
                             const IndexerView& indexer, const AttentionTarget& target,
                             const Lists& lists, const TensorView& stats,
                             const IndexGradients& gradients, const IndexLossOptions& options);

std::string describe_selection(const IndexerView& indexer, const SelectOptions& options);

}  // namespace keyhole
