// cli/check/attention_jobs.cpp
// The kernels of attention: those of the table with the trials of src/judge/trials.cpp.
#include "base/check.h"
#include "cli/check/jobs.h"
#include "judge/trials.h"
#include "runtime/dispatch.h"
#include "runtime/registry.h"

namespace keyhole::cli {
namespace {

using judge::kLongestFullyChecked, judge::Subject, judge::Trial;

Subject make_subject(const Pattern& pattern, const Shape& shape, const CheckOptions& options,
                     const Device& gpu) {
  Subject subject{.pattern = pattern,
                  .plan = plan(pattern, shape),
                  .batch = shape.batch,
                  .heads = shape.heads,
                  .kv_heads = shape.heads % 2 == 0 ? shape.heads / 2 : shape.heads,
                  .q_len = shape.q_len,
                  .k_len = shape.k_len,
                  .head_dim = options.head_dim.value_or(24),
                  .v_head_dim = options.head_dim.value_or(17),
                  .seed = uint64_t(options.seed),
                  .normalizer = options.normalizer.settle("check"),
                  .gpu = gpu};
  // A plan for one head serves all; several heads on fewer key heads are the harder case.
  if (shape.heads == 1 && shape.batch == 1) {
    const bool is_long = shape.q_len > kLongestFullyChecked;
    const bool has_batch = shape.q_len == shape.k_len && !is_long;
    subject.batch = has_batch ? 2 : 1;
    subject.heads = has_batch || is_long ? 2 : 4, subject.kv_heads = subject.heads / 2;
  }
  return subject;
}

std::vector<TileShape> tiles_to_try(const KernelEntry& kernel, const Plan& plan, bool all) {
  if (all) return kernel.tiles;
  return {pick_tile(kernel, plan)};
}

bool is_wanted(const KernelEntry& kernel, const CheckOptions& options, const Device& gpu) {
  if (kernel.device != Device::Kind::cpu && (!is_gpu(gpu) || !why_not_here(kernel).empty())) {
    return false;
  }
  if (kernel.weights != weights_of(options.normalizer.settle("check"))) return false;
  return is_wanted(kernel.name, kernel.device, kernel.dtype, options);
}

// What is put to one trial, as the kernel takes it; or why it does not.
struct Fitted {
  Subject subject;
  std::string why_not;
};

// The hardest subject that a kernel takes: unaligned rows; else rows at multiples of 16 bytes;
// else, unless a head_dim was requested, those with a v of head_dim 16.
Fitted fit(const KernelEntry& kernel, const Trial& trial, Subject subject,
           const CheckOptions& options) {
  // A gradient of one key sums over all queries: by brute force that takes minutes on long
  // sequences.
  if (kernel.operation == Operation::backward && subject.q_len > kLongestFullyChecked) {
    return {subject, fmt::format("{} queries; gradients are checked up to {}", subject.q_len,
                                 kLongestFullyChecked)};
  }
  const Device device = kernel.device == Device::Kind::cuda ? subject.gpu : Device{};
  const auto refusal_now = [&] {
    Request request =
        request_for(device, kernel.operation, kernel.dtype, subject.head_dim, subject.v_head_dim);
    request.normalizer = subject.normalizer;
    request.has_softcap = trial.has_softcap;
    request.is_aligned = subject.is_aligned;
    return refusal(kernel, request);
  };
  std::string why_not = refusal_now();
  if (!why_not.empty()) subject.is_aligned = true, why_not = refusal_now();
  if (!why_not.empty() && !options.head_dim) subject.v_head_dim = 16, why_not = refusal_now();
  return {std::move(subject), std::move(why_not)};
}

void add_jobs_of(Jobs& jobs, const KernelEntry& kernel, const Subject& subject,
                 const CheckOptions& options) {
  const std::string pattern = subject.plan.pattern_text();
  for (const Trial& trial : judge::trials()) {
    if (!suits(trial, kernel)) continue;
    const Fitted fitted = fit(kernel, trial, subject, options);
    if (!fitted.why_not.empty()) {
      jobs.skip({kernel.name, pattern, fitted.why_not});
      continue;
    }
    for (const TileShape& tile : tiles_to_try(kernel, subject.plan, options.all)) {
      jobs.all.push_back({kernel.name, trial.name, pattern, subject.plan.shape(), tile,
                          [&kernel, &trial, tile, subject = fitted.subject] {
                            return trial.run(kernel, tile, subject);
                          }});
    }
  }
}

}  // namespace

void add_attention_jobs(Jobs& jobs, const Pattern& pattern, const CheckOptions& options,
                        const Device& gpu) {
  for (const Shape& shape : shapes_for(pattern, options)) {
    const Subject subject = make_subject(pattern, shape, options, gpu);
    for (const KernelEntry& kernel : kernel_table()) {
      if (is_wanted(kernel, options, gpu)) add_jobs_of(jobs, kernel, subject, options);
    }
  }
}

}  // namespace keyhole::cli
