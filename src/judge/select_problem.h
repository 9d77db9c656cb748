// src/judge/select_problem.h
// Selections that kernels are judged by: a case in a few numbers, and its tensors in poisoned
// memory. What may not be read is NaN or infinite.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "judge/device_copies.h"
#include "judge/layout.h"
#include "judge/poisoned_tensor.h"
#include "keyhole/select.h"
#include "reference/select.h"

namespace keyhole::judge {

// What the scores of a row are like. An indexer that gives such scores has small integers for
// few_values, q = 0 for equal and zeros, a NaN and an infinity among its keys for special, and
// normal numbers for the others.
enum class ScoreKind : uint8_t {
  normal,
  few_values,  // many ties
  equal,
  zeros,  // of both signs
  mostly_zero,
  rising,
  falling,
  steps,      // equal for long stretches, in falling order
  subnormal,  // of both signs
  special,    // NaN and infinities among them
  nothing,    // NaN and -inf alone
};
inline constexpr int kNumScoreKinds = int(ScoreKind::nothing) + 1;
const char* to_string(ScoreKind kind);

struct SelectCase {
  int64_t batch = 1, groups = 1, heads = 2;  // heads: of a group
  int64_t q_len = 5, entries = 40, head_dim = 8, k = 4;
  DType dtype = DType::f32;  // of q and k, or of the scores
  bool has_w = true, has_scale = false, has_counts = true;
  std::optional<Pattern> visible = {}, always = {};
  std::optional<int64_t> offset = {};  // the position of query 0
  bool one_plan_for_all = true;
  Layout layout = Layout::contiguous;
  ScoreKind kind = ScoreKind::normal;
  int64_t extra_columns = 0;  // of the lists
  int threads = 0;
  Device device = {};
  uint64_t seed = 1;
};
std::string to_text(const SelectCase& c);

// int32 lists in memory with canaries around every row.
class Lists32 {
 public:
  Lists32(int64_t batch, int64_t groups, int64_t rows, int64_t columns);
  IndexView view() const;
  IndexView view_in(int32_t* memory) const;  // of a copy of memory()
  std::vector<int32_t>& memory() { return memory_; }
  std::vector<int32_t> row(int64_t i) const;  // all columns; i counts over batch and groups too
  std::string damage() const;                 // empty: nothing was written outside

 private:
  int64_t shape_[4], stride_;
  std::vector<int32_t> memory_;
};

class SelectProblem {
 public:
  explicit SelectProblem(const SelectCase& c);
  SelectProblem(const SelectProblem&) = delete;
  SelectProblem& operator=(const SelectProblem&) = delete;

  const SelectCase& c;
  PoisonedTensor q, k, w, k_scale;  // of the indexer
  PoisonedTensor given_scores;      // for top_k
  PoisonedTensor scores;            // that index_scores writes
  Lists32 indices, counts;

  IndexerView indexer() const;
  Selection selection() const;
  SelectOptions options() const;
  const EntryPredicate& visible() const { return sees_; }      // empty: all
  const EntryPredicate& always() const { return has_first_; }  // empty: none
  std::string damage() const;  // of the tensors and the lists; empty: none

 private:
  void draw();
  void spoil_what_is_not_visible();

  EntryPredicate sees_, has_first_;
  std::optional<Plan> visible_, always_;
};

// The tensors of a problem where a call takes them: as they are, or copied to a GPU.
class SelectTensors {
 public:
  explicit SelectTensors(SelectProblem& p);

  IndexerView indexer;
  TensorView given_scores, scores;
  Selection selection;

  void finish() const { copies_.finish(); }  // waits, and brings back what was written

 private:
  DeviceCopies copies_;
};

}  // namespace keyhole::judge
