// cli/check/jobs.h
// From the options of `keyhole check` to what is run: every wanted kernel with every trial it
// takes, and what it does not take, with the reason.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "judge/judge.h"

namespace keyhole::cli {

struct CheckOptions {
  std::string pattern, dtype, kernel;
  DeviceOption device;
  ShapeOptions shape;
  NormalizerOption normalizer;
  std::optional<int64_t> head_dim;
  int64_t seed = 1;
  bool all = false;
};

// One run of one kernel, and what it found.
struct Job {
  std::string kernel, trial;
  std::string pattern;  // empty: none, every entry is visible
  Shape shape;
  TileShape tile;
  std::function<judge::Finding()> run;
  judge::Finding finding = {};

  bool is_passed() const { return finding.complaint.empty(); }
};

struct Skipped {
  std::string kernel, pattern, why;
  bool operator==(const Skipped&) const = default;
};

struct Jobs {
  std::vector<Job> all;
  std::vector<Skipped> skipped;
  void skip(const Skipped& item);  // once for all trials that it keeps from running
};

// gpu: where the kernels of a GPU run; the CPU when there is none.
void add_attention_jobs(Jobs& jobs, const Pattern& pattern, const CheckOptions& options,
                        const Device& gpu);
// visible: what queries may choose from; not given: every entry.
void add_select_jobs(Jobs& jobs, const std::optional<Pattern>& visible, const CheckOptions& options,
                     const Device& gpu);

}  // namespace keyhole::cli
