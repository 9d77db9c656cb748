// tests/support/select_problem.h
// Selections for tests: a case in a few numbers, its tensors in poisoned memory, and what the
// definitions say about it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/select_contract.h"
#include "keyhole/select.h"
#include "reference/select.h"
#include "support/case_tensors.h"
#include "support/gpu_copies.h"

namespace keyhole::test {

// What the scores of a row are like, for top_k.
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
  std::string visible = {}, always = {};  // patterns; empty: not given
  bool one_plan_for_all = true;
  Layout layout = Layout::contiguous;
  ScoreKind kind = ScoreKind::normal;
  int64_t extra_columns = 0;  // of the lists
  int threads = 0;
  bool on_gpu = false;
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
  PoisonedTensor given_scores;      // for top_k, of c.kind
  PoisonedTensor scores;            // that index_scores writes
  Lists32 indices, counts;

  IndexerView indexer() const;
  Selection selection() const;
  SelectOptions options() const;
  EntryPredicate visible() const;  // empty: all
  EntryPredicate always() const;   // empty: none

 private:
  std::optional<Plan> visible_, always_;
};

// The tensors of a problem where a call takes them: as they are, or copied to the GPU.
class SelectTensors {
 public:
  explicit SelectTensors(SelectProblem& p);

  IndexerView indexer;
  TensorView given_scores, scores;
  Selection selection;

  // Waits, and brings back what was written. Empty, or what is wrong.
  std::string finish();

 private:
  std::optional<GpuCopies> copies_;
};

// Empty, or how the lists of a problem differ from these.
std::string difference(const SelectProblem& p, const ReferenceSelection& want);

// Runs index_scores, and gives how it differs from the definition. With a kernel: that one.
std::string check_scores(const SelectCase& c);
std::string check_scores(const SelectCase& c, const SelectKernel& kernel);
// Whether a kernel of select_keys chooses what top_k chooses from the scores of another kernel.
std::string check_select(const SelectCase& c, const SelectKernel& kernel,
                         const SelectKernel& scores);
std::string check_top_k(const SelectCase& c, const SelectKernel& kernel);
// The same for top_k of given scores, and for select_keys against the scores of index_scores, in
// one step and in two.
std::string check_top_k(const SelectCase& c);
std::string check_select_keys(const SelectCase& c);

}  // namespace keyhole::test
