// tests/gpu/determinism_test.cpp
// The forward pass and the deterministic backward pass give the same bits a thousand times,
// whatever else the GPU is doing, with lists cut into chunks and with plans of several parts.
#include <iostream>

#include "gpu/gpu_problem.h"
#include "plan/plan_state.h"
#include "support/gpu/compare.h"
#include "support/gpu/gpu_array.h"
#include "support/scale.h"

namespace keyhole::test {
namespace {

using GpuDeterminism = GpuTest;

// The results of the first run, and whether later ones have other bits: all of it on the GPU, or a
// thousand runs would wait for as many copies.
class FirstResults {
 public:
  explicit FirstResults(const std::vector<const GpuTensor*>& tensors) : tensors_(tensors) {
    for (const GpuTensor* tensor : tensors) {
      kept_.emplace_back(tensor->bytes());
      check_cuda(cudaMemcpyAsync(kept_.back().get(), tensor->view().data, size_t(tensor->bytes()),
                                 cudaMemcpyDeviceToDevice, nullptr),
                 "keeping results");
    }
    verdict_.clear();
  }
  void compare() const {  // queued
    for (size_t i = 0; i < tensors_.size(); ++i) {
      compare_words(kept_[i].get(), tensors_[i]->view().data, tensors_[i]->bytes(), verdict_.get());
    }
  }
  bool are_equal() const { return !verdict_.read()[0].found_something(); }  // waits

 private:
  std::vector<const GpuTensor*> tensors_;
  std::vector<GpuArray<std::byte>> kept_;
  GpuArray<Verdict> verdict_{1};
};

// Heads that share keys have lists of their own, of which those of the first are empty.
constexpr const char* kOwnListsText = "per_head(window(1), causal & blocks(64))";

// Other work on another stream, now and then: CTAs are then dealt out in another order.
class Disturbance {
 public:
  void queue() const { problem_.forward(plan_, on_stream(stream_)); }

 private:
  GpuProblem problem_{{.heads = 8, .q_len = 2048, .k_len = 2048}, 99};
  Plan plan_ = plan(parse("causal"), 2048, 2048);
  Stream stream_;
};

// Runs a kernel once, then again and again beside other work.
void expect_equal(const KernelEntry& kernel, const Plan& made, const GpuProblem& problem,
                  int64_t repeats, const Disturbance& disturbance) {
  queue(kernel, made, problem);
  const FirstResults first(problem.outputs(kernel.operation));
  for (int64_t i = 0; i < repeats; ++i) {
    if (i % 7 == 0) disturbance.queue();
    for (const GpuTensor* tensor : problem.outputs(kernel.operation)) tensor->fill(0xff);
    queue(kernel, made, problem);
    first.compare();
  }
  EXPECT_TRUE(first.are_equal()) << kernel.name << ", " << made.pattern_text()
                                 << ": other bits in one of " << repeats << " repeats";
}

void repeat(Operation operation) {
  const Disturbance disturbance;
  for (const KernelEntry* kernel : gpu_kernels(operation)) {
    // Without a support, rows of entmax are followed one by one: a thousand passes take minutes.
    const int64_t repeats = scaled(kernel->weights == Weights::sparse ? 100 : 1000);
    for (const char* text : {kSplitText, kTwoPartsText, kOwnListsText}) {
      const ProblemSizes sizes = sizes_for(*kernel, kSplitLength);
      const GpuProblem problem(sizes);
      const Plan made = make_plan(parse(text), {1, sizes.heads, kSplitLength, kSplitLength},
                                  SplitPolicy::by_cost);
      problem.forward(made);
      const bool has_states = text != kOwnListsText;
      if (operation == Operation::forward &&
          has_states) {  // partial results, or states between parts
        EXPECT_GT(workspace_bytes(*kernel, made, problem), 0) << kernel->name << ", " << text;
      }
      expect_equal(*kernel, made, problem, repeats, disturbance);
    }
    std::cout << kernel->name << ": " << repeats << " repeats each of three patterns\n";
  }
}

TEST_F(GpuDeterminism, AThousandForwardPassesAreEqual) { repeat(Operation::forward); }
TEST_F(GpuDeterminism, AThousandDeterministicBackwardPassesAreEqual) {
  repeat(Operation::backward);
}
// CTAs that draw their items wait for each other. One CTA alone has nobody to wait for, and must
// never wait for itself.
TEST_F(GpuDeterminism, SumsByTurnsAreEqualForAnyNumberOfCtas) {
  int64_t passes = 0;
  for (const KernelEntry* kernel : gpu_kernels(Operation::backward)) {
    if (kernel->weights == Weights::sparse) continue;
    for (const int64_t padding : {0, 24}) {  // columns of the kernel that the tensors lack
      for (const int64_t kv_heads : {1, 2}) {
        ProblemSizes sizes = sizes_for(*kernel, kSplitLength);
        sizes.kv_heads = kv_heads, sizes.head_dim -= padding;
        const GpuProblem problem(sizes);
        for (const char* text :
             {kSplitText, kTwoPartsText, kOwnListsText, "causal", "~dense", "blocks(16)"}) {
          const Plan made = make_plan(parse(text), {1, sizes.heads, kSplitLength, kSplitLength},
                                      SplitPolicy::by_cost);
          if (queued_schedule(*kernel, made, problem).dq != DqOrder::by_turns) continue;
          problem.forward(made);
          queue(*kernel, made, problem);
          const FirstResults first(problem.outputs(kernel->operation));
          for (const int processors : {1, 2, 7, 50}) {
            for (const GpuTensor* tensor : problem.outputs(kernel->operation)) tensor->fill(0xff);
            queue(*kernel, made, problem, {.num_processors = processors});
            first.compare();
            ++passes;
          }
          EXPECT_TRUE(first.are_equal())
              << kernel->name << ", " << text << ", " << kv_heads << " kv heads";
        }
      }
    }
  }
  std::cout << passes << " passes\n";
}
// Key lists that the heads of a kv head share: by spans of keys, where a kernel does that.
TEST_F(GpuDeterminism, AThousandDeterministicBackwardPassesOverKeyListsAreEqual) {
  constexpr int64_t kQueries = 300, kKeys = 3000;
  const Disturbance disturbance;
  const int64_t repeats = scaled(1000);
  int num_kernels = 0, num_by_span = 0;
  for (const KernelEntry* kernel : gpu_kernels(Operation::backward)) {
    if (kernel->weights == Weights::sparse || kernel->backend == "simple") continue;
    ProblemSizes sizes = sizes_for(*kernel, 0);
    sizes.heads = 16, sizes.q_len = kQueries, sizes.k_len = kKeys;
    const GpuProblem problem(sizes);
    const Plan made =
        make_plan(parse("random(1, 700, 3)"), {1, 16, kQueries, kKeys}, SplitPolicy::gather);
    problem.forward(made);
    expect_equal(*kernel, made, problem, repeats, disturbance);
    const BackwardSchedule schedule = queued_schedule(*kernel, made, problem);
    ++num_kernels;
    num_by_span += schedule.key_lists == KeyListOrder::by_span ? 1 : 0;
    std::cout << kernel->name << ": " << repeats << " repeats, " << to_string(schedule) << "\n";
  }
  if (num_kernels == 0) GTEST_SKIP() << "needs a GPU with tensor cores, sm_80 or newer";
  std::cout << num_by_span << " of " << num_kernels << " kernels went by span\n";
  EXPECT_GT(num_by_span, 0);
}

}  // namespace
}  // namespace keyhole::test
