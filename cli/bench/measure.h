// cli/bench/measure.h
// From a case to a record: compile the plan, check the answer, time the call.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "cli/bench/inputs.h"
#include "cli/bench/timing.h"
#include "keyhole/plan.h"
#include "runtime/dispatch.h"

namespace keyhole::bench {

// ---- is the answer right? Compared with the fp64 reference, all rows of short sequences, a sample
// of long ones ----

struct CheckEffort {
  int64_t all_rows_up_to = 1024;            // longer sequences are sampled
  int64_t sampled_keys = int64_t{1} << 22;  // rows are drawn until they have met this many keys ...
  int64_t min_rows = 16, max_rows = 256;    // ... over all heads, within these bounds per head
};

struct CheckResult {
  bool is_passed = false;
  int64_t rows = 0;  // checked, of each head
  bool is_sampled = false;
  double worst = 0;       // the largest difference, as a share of what is allowed
  std::string complaint;  // where it failed, with both numbers
};

// Runs the case once and compares. A backward case is checked with gradients that come in at the
// sampled rows only: those reach every key the rows attend to.
CheckResult check(const Case& c, const Lists& lists, Inputs& inputs, const CheckEffort& effort,
                  const AttentionOptions& options = {});

// ---- how long does it take? ----

struct Effort {
  CheckEffort check;
  TimingEffort timing;
  AttentionOptions options;  // threads, backend, determinism
  std::string indices;       // "int32", "int64": plans of key lists are given as index tensors
};

// A case that has been compiled and has passed its check: ready to be timed. Tensors are shared
// with other subjects of the same shapes.
class Subject {
 public:
  Subject(const Case& c, std::shared_ptr<Inputs> inputs, const Effort& effort);

  const Case& subject_case() const { return case_; }
  const CheckResult& check_result() const { return check_; }
  const PlanReport& report() const { return report_; }  // for the tile that runs
  const std::string& kernel() const { return kernel_; }
  // Kernel, tiles, schedule and workspace.
  const std::string& runs() const { return runs_; }
  double plan_ms() const { return plan_ms_; }
  // On a GPU: what the checked call took of its memory besides the tensors (lists of the plan and
  // scratch memory; for a backward pass the forward pass before it too).
  int64_t extra_bytes() const { return extra_bytes_; }
  int64_t tensor_bytes() const { return inputs_->num_bytes() + support_bytes(); }
  int64_t support_bytes() const { return support_ ? support_->num_bytes() : 0; }
  int64_t workspace_bytes() const;  // of its calls, on a GPU; the CPU's are made by the kernels
  // A plan of key lists reads a row of k and one of v for every key, at once for all query heads
  // that share them: that rate decides, not the products. 0: the plan has tiles.
  double gathered_bytes() const;
  const Effort& effort() const { return effort_; }
  std::function<void()> call() const;
  SupportKeys* support() const { return support_.get(); }  // null for softmax

 private:
  Lists lists() const { return indices_ ? Lists(indices_->view()) : Lists(plan_); }

  Case case_;
  std::shared_ptr<Inputs> inputs_;
  Effort effort_;
  Plan plan_;
  std::shared_ptr<KeyIndices> indices_;   // where they are followed instead of the plan
  std::shared_ptr<SupportKeys> support_;  // of entmax and top_k, as a training step keeps it
  double plan_ms_;
  CheckResult check_;
  PlanReport report_;
  std::string kernel_, runs_;
  int64_t extra_bytes_ = 0;
  // Brought to every call, so that none allocates.
  std::shared_ptr<GpuMemory> workspace_;
};

// Dense attention of the same shape: the causal one for a causal pattern.
Case dense_twin(const Case& c);

nlohmann::json to_json(const Timing& timing);
nlohmann::json to_json(const Subject& subject, const Timing& timing);
// The tile that dense attention is computed in.
TileShape dense_tile(const Case& c);
// How many of those tiles hold any pair of the pattern; the mean of the heads.
double kept_tiles(const Case& c);
// Adds dense attention of the same shape to the record of a sparse one, the speed-up, and how many
// times longer it took than dense time x share of tiles kept, and than dense time x share of pairs
// visited (in the tiles, classes or key lists that were really followed).
struct DenseTwin {
  std::string pattern_text;  // "dense" or "causal"
  Timing timing;
  double pairs = 0, visited_pairs = 0, tiles = 0;
  bool is_measured = true;  // false: the median is told from the rate at a shorter length
};
DenseTwin dense_twin_of(const Subject& subject, const Timing& timing);
void add_dense(nlohmann::json& record, const DenseTwin& twin);

// ---- how much memory does it need? ----

// Starts to watch the memory of the process, or of a GPU; asked later, gives the bytes that were
// needed in between. Nothing where the system cannot tell.
std::optional<std::function<double()>> watch_memory(const Device& device);

// What the first call of a case needs besides its tensors, plan included; of a backward case the
// backward pass alone. Threads must be there already.
std::optional<double> extra_bytes(const Case& c, AttentionOptions options);

}  // namespace keyhole::bench
