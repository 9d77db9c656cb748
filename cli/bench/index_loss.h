// cli/bench/index_loss.h
// The loss of an indexer over the keys that were chosen, and its gradients.
#pragma once

#include "cli/bench/inputs.h"
#include "cli/bench/select_step.h"
#include "cli/bench/session.h"
#include "kernels/select_contract.h"
#include "keyhole/select.h"
#include "reference/select.h"

namespace keyhole::bench {

// An indexer of such sizes in bf16 (on the host f32) and the attention that it learns from.
class IndexLoss {
 public:
  // attention, lists: where kernels read them; the others are their copies on the host.
  struct Target {
    AttentionTarget attention, on_host;
    IndexView lists, lists_on_host;
    double pairs = 0;  // listed, of all queries
  };
  IndexLoss(const Session& session, const SelectSizes& sizes, const Target& target);

  SelectStep loss();
  SelectStep gradients();  // after a run of loss()

 private:
  IndexerView indexer() const { return {q_, k_, w_, {}}; }
  std::string kernel(SelectOperation operation) const;
  double products() const;  // of all pairs, with both
  // What the definition says of one query alone.
  ReferenceIndexLoss reference(int64_t query) const;
  std::string check_loss();
  std::string check_gradients();

  SelectSizes sizes_;
  Target target_;
  IndexLossOptions options_;
  Tensor q_, k_, w_, loss_, stats_, dloss_, dq_, dk_, dw_;
  Tensor row_;  // a number of a query, for checks
};

}  // namespace keyhole::bench
