// tests/support/gpu/judge.h
// Puts questions to a GPU, many at once, and reads all answers in one copy.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/check_case.h"
#include "support/gpu/poisoned_on_gpu.h"

namespace keyhole::test {

// Tensors that are named must live until the verdict. All is queued on the default stream.
class Judge {
 public:
  Judge();

  void expect_values(const char* kind, const char* name, const PoisonedOnGpu& got,
                     const ExpectedOnGpu& expected);
  void expect_same_bits(const char* kind, const char* name, const PoisonedOnGpu& a,
                        const PoisonedOnGpu& b);
  void expect_no_damage(const char* name, const PoisonedOnGpu& tensor);
  void expect_no_damage(const WorkspaceOnGpu& workspace);
  void expect_counts(const ReferenceInputs& in, const PoisonedOnGpu& lse);
  void expect_empty_rows(const ReferenceInputs& in, const PoisonedOnGpu& out,
                         const PoisonedOnGpu& lse, const TensorView& dq);

  // Waits. The first question, in the order they were asked, whose answer is not the right one.
  Failure verdict(double* worst = nullptr);

 private:
  // In words, what a verdict says; empty: all is well.
  using Words = std::function<std::string(const Verdict&)>;
  struct Question {
    std::string kind;
    Words words;
  };
  Verdict* ask(std::string kind, Words words);

  GpuArray<Verdict> verdicts_;
  std::vector<Question> questions_;
};

}  // namespace keyhole::test
