// src/judge/loss_problem.h
// Index losses that kernels are judged by: a case in a few numbers, and its tensors in poisoned
// memory. Keys that no query lists are NaN.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "judge/device_copies.h"
#include "judge/layout.h"
#include "judge/poisoned_tensor.h"
#include "keyhole/select.h"
#include "reference/select.h"

namespace keyhole::judge {

struct LossCase {
  int64_t batch = 1, groups = 1, heads = 2, head_dim = 8;   // of the indexer; heads of a group
  int64_t target_heads = 2, kv_heads = 1, target_dim = 12;  // of the attention
  int64_t q_len = 9, entries = 9;
  int64_t keys_per_entry = 1, missing_keys = 0;  // missing_keys: of the last entry
  DType dtype = DType::f32, target_dtype = DType::f32;
  bool has_w = true, has_scale = false;
  Pattern pattern = causal();          // of the plan, or what the selection is drawn from
  std::optional<int64_t> offset = {};  // the position of query 0
  int64_t selected = 0;                // entries in the list of each query; 0: the plan
  std::vector<int32_t> rows = {};      // empty: all
  double softcap = 0;
  std::optional<double> scale = {};
  double other_weight = 0;  // of each head, with keys that are not listed: sinks, a window
  Layout layout = Layout::contiguous;
  int threads = 0;
  Device device = {};
  uint64_t seed = 1;

  int64_t k_len() const { return entries * keys_per_entry - missing_keys; }
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
  KeyListView selected() const;   // if c.selected > 0
  EntryPredicate listed() const;  // keys in the lists, and of a query that counts
  IndexLossOptions options() const;
  std::string damage_of_inputs() const;  // empty: none

  void forward();
  void backward();

 private:
  bool is_listed(int64_t b, int64_t g, int64_t t, int64_t key) const;
  bool clips() const;
  void draw_lists(Random& random);
  void spoil_what_is_not_listed();
  void compute_lse();

  std::vector<uint8_t> is_listed_;  // [batch, groups, q_len, k_len]
  std::optional<Plan> plan_;
  std::vector<int32_t> selected_;  // [batch, groups, q_len, c.selected]
};

// The tensors of a problem where a call takes them: as they are, or copied to a GPU.
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
  void finish() const { copies_.finish(); }  // waits, and brings back what was written

 private:
  DeviceCopies copies_;
  std::vector<int32_t> selected_, rows_;
};

}  // namespace keyhole::judge
