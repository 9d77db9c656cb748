// src/api/select.cpp
// The public functions of a selection: check the arguments once, then run.
#include "keyhole/select.h"

#include "api/check_select.h"
#include "select/selection.h"

namespace keyhole {

void index_scores(const IndexerView& indexer, const TensorView& scores,
                  const SelectOptions& options) {
  check_index_scores(indexer, scores, options);
  run_index_scores(indexer, scores, options);
}

void top_k(const TensorView& scores, const Selection& selection, const SelectOptions& options) {
  check_top_k(scores, selection, options);
  run_top_k(scores, selection, options);
}

void select_keys(const IndexerView& indexer, const Selection& selection,
                 const SelectOptions& options) {
  check_select_keys(indexer, selection, options);
  run_select_keys(indexer, selection, options);
}

void index_loss_forward(const IndexerView& indexer, const AttentionTarget& target,
                        const Lists& lists, const TensorView& loss, const TensorView& stats,
                        const IndexLossOptions& options) {
  check_index_loss_forward(indexer, target, lists, loss, stats, options);
  run_index_loss_forward(indexer, target, lists, loss, stats, options);
}

void index_loss_backward(const TensorView& dloss, const IndexerView& indexer,
                         const AttentionTarget& target, const Lists& lists, const TensorView& stats,
                         const IndexGradients& gradients, const IndexLossOptions& options) {
  check_index_loss_backward(dloss, indexer, target, lists, stats, gradients, options);
  run_index_loss_backward(dloss, indexer, target, lists, stats, gradients, options);
}

std::string kernel_for_selection(const IndexerView& indexer, const SelectOptions& options) {
  check_selection_question(indexer, options);
  return describe_selection(indexer, options);
}

}  // namespace keyhole
