// tests/support/gpu/gpu_case.h
// A case on a GPU, ready for every kernel that takes it: pattern, plan and mask come from the host,
// the tensors and the reference are made there.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "keyhole/plan.h"
#include "support/allowed_pairs.h"
#include "support/case_tensors.h"
#include "support/draw_numbers.h"
#include "support/gpu/bounds.h"
#include "support/gpu/poisoned_on_gpu.h"

namespace keyhole::test {

using InputsOnGpu = InputTensors<PoisonedOnGpu>;
using OutputsOnGpu = OutputTensors<PoisonedOnGpu>;

// Filled as the case says, and sealed.
class NumbersOnGpu {
 public:
  NumbersOnGpu(const Case& c, const AllowedPairs& allowed);
  InputsOnGpu in;

 private:
  InputNumbers drawn_;
  GpuArray<uint8_t> empty_queries_, unseen_keys_;
};

class GpuCase {
 public:
  explicit GpuCase(const Case& the_case);

  const Case c;
  const Pattern pattern;
  const Plan made;
  const AllowedPairs allowed;

  const InputsOnGpu& in() const { return numbers_.in; }
  const InputsOnGpu& contiguous_in() const { return contiguous_in_; }  // the same numbers
  const InputsOnGpu& count_in() const { return count_numbers_.in; }    // q = 0, contiguous
  const ReferenceInputs& reference_in() const { return reference_in_; }
  const GpuReference& want() const { return want_; }
  const GpuBounds& bounds(bool rounds_weights);
  // In words, where the plan's lists for a tile shape are not the pattern; looked at once.
  std::string compare_plan(TileShape tile);

 private:
  NumbersOnGpu numbers_, count_numbers_;
  InputsOnGpu contiguous_in_;
  GpuArray<uint64_t> allowed_bits_;
  ReferenceInputs reference_in_;
  GpuReference want_;
  std::optional<GpuBounds> bounds_[2];
  std::set<std::pair<int32_t, int32_t>> compared_tiles_;
};

// The case, prepared: the last one stays, because kernels, tiles and configurations take turns on
// it.
GpuCase& prepared_on_gpu(const Case& c);

}  // namespace keyhole::test
