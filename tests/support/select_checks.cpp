// tests/support/select_checks.cpp
#include "support/select_checks.h"

#include "select/requests.h"
#include "select/selection.h"

namespace keyhole::test {

std::string check_scores(const SelectCase& c) {
  SelectProblem p(c);
  const SelectTensors tensors(p);
  const SelectKernel& kernel = choose_select(
      select_table(), request_of(SelectOperation::scores, tensors.indexer, 0, "auto"));
  index_scores(tensors.indexer, tensors.scores, p.options());
  tensors.finish();
  return judge::judge_scores(p, kernel.product_error).complaint;
}

std::string check_top_k(const SelectCase& c) {
  SelectProblem p(c);
  const SelectTensors tensors(p);
  top_k(tensors.given_scores, tensors.selection, p.options());
  tensors.finish();
  return judge::judge_lists(p, p.given_scores.view(), /*takes_short_rows=*/false).complaint;
}

std::string check_select_keys(const SelectCase& c) {
  SelectProblem p(c), again(c);
  const SelectTensors tensors(p), tensors_again(again);
  index_scores(tensors.indexer, tensors.scores, p.options());
  select_keys(tensors.indexer, tensors.selection, p.options());
  run_select_keys_in_two_steps(tensors_again.indexer, tensors_again.selection, again.options(),
                               /*most_bytes=*/4096);
  tensors.finish(), tensors_again.finish();
  const auto judged = [&](const SelectProblem& lists) {
    return judge::judge_lists(lists, p.scores.view(), /*takes_short_rows=*/true).complaint;
  };
  if (const std::string found = judged(p); !found.empty()) return found;
  const std::string found = judged(again);
  return found.empty() ? "" : "in two steps: " + found;
}

const SelectKernel& loss_kernel(SelectOperation operation, const LossTensors& tensors) {
  SelectRequest request =
      request_of(operation, tensors.indexer, tensors.target, tensors.options.backend);
  request.deterministic = operation == SelectOperation::gradients && tensors.options.deterministic;
  return choose_select(select_table(), request);
}
bool loss_runs_on(const std::string& backend, const LossTensors& tensors) {
  return loss_kernel(SelectOperation::loss, tensors).backend == backend &&
         loss_kernel(SelectOperation::gradients, tensors).backend == backend;
}

std::string check_loss(const LossCase& c) {
  LossProblem p(c);
  const LossTensors tensors(p);
  const bool has_gradients = c.dtype != DType::e4m3;
  tensors.forward();
  if (has_gradients) tensors.backward();
  tensors.finish();
  const auto want = reference_index_loss(p.indexer(), p.target(), p.listed(), p.dloss.values());
  const std::string found = judge::judge_loss(p, want).complaint;
  if (!found.empty() || !has_gradients) return found;
  const SelectKernel& kernel = loss_kernel(SelectOperation::gradients, tensors);
  return judge::judge_gradients(p, want, kernel.rounds_gradients).complaint;
}

}  // namespace keyhole::test
