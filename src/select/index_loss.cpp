// src/select/index_loss.cpp
// The index loss on any backend.
#include <cmath>

#include "base/check.h"
#include "runtime/call_site.h"
#include "select/plan_views.h"
#include "select/requests.h"
#include "select/selection.h"

namespace keyhole {
namespace {

IndexLossArgs args_of(const IndexerView& indexer, const AttentionTarget& target,
                      const PlanView& lists, const TensorView& stats,
                      const IndexLossOptions& options, const Launch& launch) {
  IndexLossArgs args;
  args.q = indexer.q;
  args.k = indexer.k;
  args.w = indexer.w;
  args.k_scale = indexer.k_scale;
  args.target_q = target.q;
  args.target_k = target.k;
  args.target_lse = target.lse;
  args.rule = {.scale = target.scale.value_or(1 / std::sqrt(double(target.q.shape[3]))),
               .softcap = target.softcap};
  args.keys_per_entry = target.keys_per_entry;
  args.lists = lists;
  args.stats = stats;
  args.has_rows = options.rows.is_given();
  if (args.has_rows) {
    args.rows = static_cast<const int32_t*>(options.rows.data);
    args.num_rows = options.rows.shape[3];
  }
  args.threads = options.threads;
  args.launch = launch;
  return args;
}

}  // namespace

void run_index_loss_forward(const SelectKernel& kernel, const IndexerView& indexer,
                            const AttentionTarget& target, const Lists& lists,
                            const TensorView& loss, const TensorView& stats,
                            const IndexLossOptions& options) {
  const auto site = call_site(indexer.q.device, options.threads, options.stream, options.allocate);
  const PlanView view = follow(*site, lists, kernel, indexer, target, "index_loss_forward");
  IndexLossArgs args = args_of(indexer, target, view, stats, options, site->launch());
  args.loss = loss;
  const int64_t bytes = kernel.loss_workspace != nullptr ? kernel.loss_workspace(args) : 0;
  site->with_scratch(bytes, [&](void* memory) {
    args.launch.workspace = memory, args.launch.workspace_bytes = bytes;
    kernel.loss(args);
  });
}

void run_index_loss_backward(const SelectKernel& kernel, const TensorView& dloss,
                             const IndexerView& indexer, const AttentionTarget& target,
                             const Lists& lists, const TensorView& stats,
                             const IndexGradients& gradients, const IndexLossOptions& options) {
  const auto site = call_site(indexer.q.device, options.threads, options.stream, options.allocate);
  const PlanView view = follow(*site, lists, kernel, indexer, target, "index_loss_backward");
  IndexGradientArgs args = {.loss = args_of(indexer, target, view, stats, options, site->launch()),
                            .dloss = dloss,
                            .dq = gradients.dq,
                            .dk = gradients.dk,
                            .dw = gradients.dw};
  const int64_t bytes =
      kernel.gradients_workspace != nullptr ? kernel.gradients_workspace(args) : 0;
  site->with_scratch(bytes, [&](void* memory) {
    args.loss.launch.workspace = memory, args.loss.launch.workspace_bytes = bytes;
    kernel.gradients(args);
  });
}

void run_index_loss_forward(const IndexerView& indexer, const AttentionTarget& target,
                            const Lists& lists, const TensorView& loss, const TensorView& stats,
                            const IndexLossOptions& options) {
  const SelectRequest request = request_of(SelectOperation::loss, indexer, target, options.backend);
  run_index_loss_forward(choose_select(select_table(), request), indexer, target, lists, loss,
                         stats, options);
}

void run_index_loss_backward(const TensorView& dloss, const IndexerView& indexer,
                             const AttentionTarget& target, const Lists& lists,
                             const TensorView& stats, const IndexGradients& gradients,
                             const IndexLossOptions& options) {
  SelectRequest request = request_of(SelectOperation::gradients, indexer, target, options.backend);
  request.deterministic = options.deterministic;
  run_index_loss_backward(choose_select(select_table(), request), dloss, indexer, target, lists,
                          stats, gradients, options);
}

}  // namespace keyhole
