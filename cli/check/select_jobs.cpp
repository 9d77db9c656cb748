// cli/check/select_jobs.cpp
// The kernels that select keys: those of their table with the trials of
// src/judge/select_trials.cpp.
#include "base/check.h"
#include "cli/check/jobs.h"
#include "judge/select_trials.h"
#include "pattern/smallest_shape.h"
#include "runtime/gpu.h"
#include "runtime/select_registry.h"

namespace keyhole::cli {
namespace {

using judge::AnySelectCase, judge::SelectSubject, judge::SelectTrial;

// The definitions look at every pair of every index head.
constexpr int64_t kMostPairs = int64_t{1} << 20;

bool is_wanted(const SelectKernel& kernel, const CheckOptions& options, const Device& gpu) {
  if (kernel.device != Device::Kind::cpu) {
    if (!is_gpu(gpu)) return false;
    const int capability = keyhole::gpu(gpu).compute_capability;
    if (capability < kernel.min_compute_capability || capability > kernel.max_compute_capability) {
      return false;
    }
  }
  return is_wanted(kernel.name, kernel.device, kernel.dtype, options);
}

SelectSubject make_subject(const std::optional<Pattern>& visible, const Shape& shape,
                           const CheckOptions& options, const Device& gpu) {
  SelectSubject subject{.visible = visible,
                        .shape = shape,
                        .one_plan_for_all = shape.batch == 1 && shape.heads == 1,
                        .head_dim = options.head_dim,
                        .seed = uint64_t(options.seed),
                        .gpu = gpu};
  // A plan for one group of one batch entry serves all.
  if (subject.one_plan_for_all && shape.q_len * shape.k_len <= 1 << 13) {
    (shape.q_len == shape.k_len ? subject.shape.batch : subject.shape.heads) = 2;
  }
  return subject;
}

// What is put to one trial, as the kernel takes it; or why it does not.
struct Fitted {
  AnySelectCase c;
  std::string why_not;
};

// The hardest case that a kernel takes: unaligned rows; else rows at multiples of 16 bytes; else,
// unless a head_dim was requested, one that such rows can have in any dtype.
Fitted fit(const SelectKernel& kernel, AnySelectCase any, const CheckOptions& options) {
  if (kernel.objection == nullptr) return {std::move(any), ""};
  const std::string why_not = std::visit(
      [&](auto& c) {
        std::string reason = refusal_of(kernel, c);
        if (!reason.empty()) c.layout = judge::Layout::bshd, reason = refusal_of(kernel, c);
        if (!reason.empty() && !options.head_dim) c.head_dim = 32, reason = refusal_of(kernel, c);
        return reason;
      },
      any);
  return {std::move(any), why_not};
}

void add_jobs_of(Jobs& jobs, const SelectKernel& kernel, const SelectSubject& subject,
                 const CheckOptions& options) {
  const std::string pattern = subject.visible ? subject.visible->text() : "";
  const Shape& shape = subject.shape;
  if (shape.batch * shape.heads * shape.q_len * shape.k_len > kMostPairs) {
    jobs.skip({kernel.name, pattern,
               fmt::format("{} x {} pairs; selections are checked up to {} pairs", shape.q_len,
                           shape.k_len, kMostPairs)});
    return;
  }
  for (const SelectTrial& trial : judge::select_trials()) {
    if (trial.operation != kernel.operation) continue;
    for (AnySelectCase& c : trial.cases(kernel, subject)) {
      const Fitted fitted = fit(kernel, std::move(c), options);
      if (!fitted.why_not.empty()) {
        jobs.skip({kernel.name, pattern, fitted.why_not});
        continue;
      }
      jobs.all.push_back(
          {kernel.name, trial.name, pattern, shape, kernel.tile, [&kernel, c = fitted.c] {
             return std::visit([&](const auto& known) { return run_and_judge(kernel, known); }, c);
           }});
    }
  }
}

// Besides what attention is checked with, a row that is long for its kernels: they sample it, or
// several blocks of threads share it.
std::vector<Shape> lengths_for(const Pattern& visible, const CheckOptions& options) {
  std::vector<Shape> shapes = shapes_for(visible, options);
  if (options.shape.is_given()) return shapes;
  const Shape long_rows = smallest_shape(visible, 2, 5003);
  const bool is_one = long_rows.batch == 1 && long_rows.heads == 1;
  if (is_one && fits(visible, long_rows)) shapes.push_back(long_rows);
  return shapes;
}

}  // namespace

void add_select_jobs(Jobs& jobs, const std::optional<Pattern>& visible, const CheckOptions& options,
                     const Device& gpu) {
  for (const Shape& shape : lengths_for(visible.value_or(dense()), options)) {
    const SelectSubject subject = make_subject(visible, shape, options, gpu);
    for (const SelectKernel& kernel : select_table()) {
      if (is_wanted(kernel, options, gpu)) add_jobs_of(jobs, kernel, subject, options);
    }
  }
}

}  // namespace keyhole::cli
