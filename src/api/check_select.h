// src/api/check_select.h
// The one place where arguments of a selection are checked; kernels then trust them.
#pragma once

#include "keyhole/select.h"

namespace keyhole {

// Throw Error(usage or unsupported) before anything is written, as check_arguments.h does.
void check_index_scores(const IndexerView& indexer, const TensorView& scores,
                        const SelectOptions& options);
void check_top_k(const TensorView& scores, const Selection& selection,
                 const SelectOptions& options);
void check_select_keys(const IndexerView& indexer, const Selection& selection,
                       const SelectOptions& options);
void check_index_loss_forward(const IndexerView& indexer, const AttentionTarget& target,
                              const Lists& lists, const TensorView& loss, const TensorView& stats,
                              const IndexLossOptions& options);
void check_index_loss_backward(const TensorView& dloss, const IndexerView& indexer,
                               const AttentionTarget& target, const Lists& lists,
                               const TensorView& stats, const IndexGradients& gradients,
                               const IndexLossOptions& options);
// For kernel_for_selection: checks what decides which kernels run. Tensors need no memory.
void check_selection_question(const IndexerView& indexer, const SelectOptions& options);

}  // namespace keyhole
