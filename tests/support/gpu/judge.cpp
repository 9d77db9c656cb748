// tests/support/gpu/judge.cpp
#include "support/gpu/judge.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "kernels/device/check_cuda.h"
#include "support/tolerance.h"

namespace keyhole::test {
namespace {

constexpr int64_t kMostQuestions = 96;

double read_one(const double* on_gpu, uint64_t index) {
  double value = 0;
  check_cuda(cudaMemcpy(&value, on_gpu + index, sizeof value, cudaMemcpyDeviceToHost),
             "copying an element from the GPU");
  return value;
}

}  // namespace

Judge::Judge() : verdicts_(kMostQuestions) { verdicts_.clear(); }

Verdict* Judge::ask(std::string kind, Words words) {
  KEYHOLE_ASSERT(int64_t(questions_.size()) < kMostQuestions, "a judge answers ", kMostQuestions,
                 " questions");
  questions_.push_back({std::move(kind), std::move(words)});
  return verdicts_.get() + (questions_.size() - 1);
}

void Judge::expect_values(const char* kind, const char* name, const PoisonedOnGpu& got,
                          const ExpectedOnGpu& expected) {
  if (!got.is_given()) return;
  Verdict* verdict = ask(kind, [name, &got, expected](const Verdict& v) {
    if (v.found_something()) {
      const uint64_t at = v.first_wrong();
      return wrong_element(name, at, got.get(int64_t(at)), read_one(expected.want, at),
                           read_one(expected.bound, at), read_one(expected.plain, at));
    }
    return wrong_norm(name, got.view().dtype, std::sqrt(v.error), std::sqrt(v.plain),
                      std::sqrt(v.bound));
  });
  compare_values(got.view(), expected, verdict);
}

void Judge::expect_same_bits(const char* kind, const char* name, const PoisonedOnGpu& a,
                             const PoisonedOnGpu& b) {
  if (!a.is_given()) return;
  Verdict* verdict = ask(kind, [name, &a, &b](const Verdict& v) -> std::string {
    if (!v.found_something()) return "";
    const auto at = int64_t(v.first_wrong());
    return say(name, "[", at, "] is ", a.get(at), " and then ", b.get(at));
  });
  compare_bits(a.view(), b.view(), verdict);
}

void Judge::expect_no_damage(const char* name, const PoisonedOnGpu& tensor) {
  if (!tensor.is_given()) return;
  tensor.look_for_damage(ask("poison", [name, &tensor](const Verdict& v) -> std::string {
    return v.found_something() ? say(name, ": ", tensor.damage_text(v)) : "";
  }));
}

void Judge::expect_no_damage(const WorkspaceOnGpu& workspace) {
  workspace.look_for_damage(ask("poison", [](const Verdict& v) -> std::string {
    return v.found_something()
               ? say("byte ", 2 * v.first_wrong(), " behind the workspace was written")
               : "";
  }));
}

void Judge::expect_counts(const ReferenceInputs& in, const PoisonedOnGpu& lse) {
  Verdict* verdict = ask("count", [&lse](const Verdict& v) -> std::string {
    if (!v.found_something()) return "";
    const auto row = int64_t(v.first_wrong());
    return say("row ", row, " counts ", std::exp(lse.get(row)),
               " keys, which is not what the pattern allows");
  });
  compare_counts(in, lse.view(), verdict);
}

void Judge::expect_empty_rows(const ReferenceInputs& in, const PoisonedOnGpu& out,
                              const PoisonedOnGpu& lse, const TensorView& dq) {
  Verdict* verdict = ask("empty row", [&lse](const Verdict& v) -> std::string {
    if (!v.found_something()) return "";
    const auto row = int64_t(v.first_wrong());
    return say("row ", row, " sees nothing; out and dq must be 0, lse -inf or the sink: lse is ",
               lse.get(row));
  });
  check_empty_rows(in, out.view(), lse.view(), dq, verdict);
}

Failure Judge::verdict(double* worst) {
  const std::vector<Verdict> all = verdicts_.read();
  for (size_t i = 0; i < questions_.size(); ++i) {
    if (worst) *worst = std::max(*worst, std::bit_cast<double>(all[i].worst));
    std::string text = questions_[i].words(all[i]);
    if (!text.empty()) return {questions_[i].kind, std::move(text)};
  }
  return {};
}

}  // namespace keyhole::test
