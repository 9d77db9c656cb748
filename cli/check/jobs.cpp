// cli/check/jobs.cpp
#include "cli/check/jobs.h"

#include <algorithm>

#include "base/check.h"
#include "pattern/smallest_shape.h"
#include "runtime/dispatch.h"
#include "runtime/registry.h"

namespace keyhole::cli {
namespace {

using judge::kLongestFullyChecked;

bool fits(const Pattern& pattern, const Shape& shape) {
  try {
    pattern.for_head(shape, shape.batch - 1, shape.heads - 1);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return false;
  }
}

// Ragged lengths around tile edges. A pattern that brings its own lengths (at) gets those.
std::vector<Shape> shapes_for(const Pattern& pattern, bool all) {
  std::vector<std::pair<int64_t, int64_t>> lengths = {{67, 67}, {45, 131}};
  if (all)
    lengths.insert(lengths.end(),
                   {{0, 5}, {1, 1}, {1, 200}, {128, 128}, {129, 255}, {90, 33}, {257, 257}});
  std::vector<Shape> shapes;
  const auto add = [&](int64_t q_len, int64_t k_len) {
    const Shape shape = smallest_shape(pattern, q_len, k_len);
    if (fits(pattern, shape)) shapes.push_back(shape);
  };
  for (const auto& [q_len, k_len] : lengths) add(q_len, k_len);
  for (int64_t q_len = 1; q_len <= 16 && shapes.empty(); ++q_len) {
    for (int64_t k_len = 1; k_len <= 16 && shapes.empty(); ++k_len) add(q_len, k_len);
  }
  return shapes;
}

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
  if (!options.device.is_auto() && kernel.device != options.device.settle("check").kind) {
    return false;
  }
  if (kernel.weights != weights_of(options.normalizer.settle("check"))) return false;
  if (!options.dtype.empty() && kernel.dtype != dtype_from(options.dtype)) return false;
  return kernel.name.find(options.kernel) != std::string::npos;
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

}  // namespace

std::vector<Subject> subjects_for(const Pattern& pattern, const CheckOptions& options,
                                  const Device& gpu) {
  std::vector<Subject> subjects;
  if (options.shape.is_given()) {
    const Shape shape = options.shape.shape("check", pattern);
    // Short of that, brute force answers within seconds.
    KEYHOLE_CHECK(std::max(shape.q_len, shape.k_len) <= 131072, "check: lengths ", shape.q_len,
                  " and ", shape.k_len, " would take minutes; accepted are up to 131072");
    return {make_subject(pattern, shape, options, gpu)};
  }
  for (const Shape& shape : shapes_for(pattern, options.all)) {
    subjects.push_back(make_subject(pattern, shape, options, gpu));
  }
  return subjects;
}

Jobs jobs_for(const std::vector<Subject>& subjects, const CheckOptions& options,
              const Device& gpu) {
  Jobs jobs;
  for (const Subject& subject : subjects) {
    for (const KernelEntry& kernel : kernel_table()) {
      if (!is_wanted(kernel, options, gpu)) continue;
      for (const Trial& trial : judge::trials()) {
        if (!suits(trial, kernel)) continue;
        Fitted fitted = fit(kernel, trial, subject, options);
        if (fitted.why_not.empty()) {
          jobs.all.push_back({&kernel, &trial, std::move(fitted.subject),
                              tiles_to_try(kernel, subject.plan, options.all)});
          continue;
        }
        const Skipped skipped{kernel.name, subject.plan.pattern_text(), fitted.why_not};
        if (jobs.skipped.empty() || jobs.skipped.back() != skipped) {
          jobs.skipped.push_back(skipped);  // once for all trials that it keeps from running
        }
      }
    }
  }
  return jobs;
}

}  // namespace keyhole::cli
