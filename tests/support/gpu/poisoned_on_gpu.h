// tests/support/gpu/poisoned_on_gpu.h
// Tensors for hostile tests that are made, filled and looked after on a GPU: the same bytes as a
// PoisonedTensor, without a copy of them on the host.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "judge/placement.h"
#include "runtime/gpu_memory.h"
#include "support/gpu/compare.h"
#include "support/numbers.h"

namespace keyhole::test {

// Work is queued on the default stream.
class PoisonedOnGpu {
 public:
  PoisonedOnGpu() = default;
  PoisonedOnGpu(const judge::Placement& placed, bool is_output);

  const TensorView& view() const { return placed_.view; }
  bool is_given() const { return view().is_given(); }
  void fill(const Numbers& numbers);  // what `numbers` points to lies on the GPU
  void seal();                        // remembers every byte

  // An output has changed outside its elements, or an input that was sealed has changed at all.
  void look_for_damage(Verdict* verdict) const;
  std::string damage_text(const Verdict& verdict) const;

  // All of it, moats included; both wait.
  std::vector<std::byte> read() const;
  void write(const std::vector<std::byte>& bytes) const;
  double get(int64_t index) const;  // one element, in logical order; waits

 private:
  judge::Placement placed_;
  bool is_output_ = false;
  GpuMemory memory_, sealed_;
};

// Scratch memory for a call, with a canary behind it.
class WorkspaceOnGpu {
 public:
  explicit WorkspaceOnGpu(int64_t bytes);  // full of NaN
  void* data() const { return memory_.data(); }
  void look_for_damage(Verdict* verdict) const;

 private:
  int64_t canary_at_;
  GpuMemory memory_;
};

}  // namespace keyhole::test
