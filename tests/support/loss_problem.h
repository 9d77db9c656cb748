// tests/support/loss_problem.h
// Index losses for tests: a case in a few numbers, its tensors in poisoned memory, and how the
// results differ from the definition.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "keyhole/select.h"
#include "reference/select.h"
#include "support/case_tensors.h"
#include "support/select_problem.h"

namespace keyhole::test {

struct LossCase {
  int64_t batch = 1, groups = 1, heads = 2, head_dim = 8;   // of the indexer; heads of a group
  int64_t target_heads = 2, kv_heads = 1, target_dim = 12;  // of the attention
  int64_t q_len = 9, entries = 9;
  DType dtype = DType::f32, target_dtype = DType::f32;
  bool has_w = true, has_scale = false;
  std::string pattern = "causal";  // of the plan, or what the selection is drawn from
  int64_t selected = 0;            // keys in the list of each query; 0: the plan
  std::vector<int32_t> rows = {};  // empty: all
  double softcap = 0;
  std::optional<double> scale = {};
  double other_weight = 0;  // of each head, with keys that are not listed: sinks, a window
  Layout layout = Layout::contiguous;
  int threads = 0;
  bool on_gpu = false;
  uint64_t seed = 1;
};
std::string to_text(const LossCase& c);

class LossProblem {
 public:
  explicit LossProblem(const LossCase& c);
  LossProblem(const LossProblem&) = delete;
  LossProblem& operator=(const LossProblem&) = delete;

  const LossCase& c;
  PoisonedTensor q, k, w, k_scale, target_q, target_k, lse;
  PoisonedTensor loss, stats, dloss, dq, dk, dw;

  IndexerView indexer() const;
  AttentionTarget target() const;
  Lists lists() const;
  IndexView selected() const;     // if c.selected > 0
  EntryPredicate listed() const;  // in the lists, and of a query that counts
  IndexLossOptions options() const;

  void forward();
  void backward();

 private:
  EntryPredicate allowed_;
  std::optional<Plan> plan_;
  std::vector<int32_t> selected_;  // [batch, groups, q_len, c.selected]
};

// The tensors of a problem where a call takes them: as they are, or copied to the GPU.
class LossTensors {
 public:
  explicit LossTensors(LossProblem& p);

  IndexerView indexer;
  AttentionTarget target;
  Lists lists;
  TensorView loss, stats, dloss;
  IndexGradients gradients;
  IndexLossOptions options;

  void forward() const;
  void backward() const;
  // Waits, and brings back what was written. Empty, or what is wrong.
  std::string finish();

 private:
  std::optional<GpuCopies> copies_;
  std::vector<int32_t> selected_, rows_;
};

// Runs both directions; empty, or how they differ from the definition.
std::string check_loss(const LossCase& c);

}  // namespace keyhole::test
