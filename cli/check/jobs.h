// cli/check/jobs.h
// From the options of `keyhole check` to what is run: every wanted kernel with every trial it
// takes, and what it does not take, with the reason.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"
#include "cli/device.h"
#include "cli/normalizer_option.h"
#include "judge/trials.h"

namespace keyhole::cli {

using judge::Finding, judge::Subject, judge::Trial;

struct CheckOptions {
  std::string pattern, dtype, kernel;
  DeviceOption device;
  ShapeOptions shape;
  NormalizerOption normalizer;
  std::optional<int64_t> head_dim;
  int64_t seed = 1;
  bool all = false;
};

// One kernel, one trial, one subject; as many runs as tiles are tried.
struct Job {
  const KernelEntry* kernel;
  const Trial* trial;
  Subject subject;
  std::vector<TileShape> tiles;
};

struct Skipped {
  std::string kernel, pattern, why;
  bool operator==(const Skipped&) const = default;
};

struct Jobs {
  std::vector<Job> all;
  std::vector<Skipped> skipped;
};

// gpu: where the kernels of a GPU run; the CPU when there is none.
std::vector<Subject> subjects_for(const Pattern& pattern, const CheckOptions& options,
                                  const Device& gpu);
Jobs jobs_for(const std::vector<Subject>& subjects, const CheckOptions& options, const Device& gpu);

}  // namespace keyhole::cli
