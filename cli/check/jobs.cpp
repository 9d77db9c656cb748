// cli/check/jobs.cpp
// The kernels of attention with the trials of src/judge/trials.cpp, and those that select keys with
// the trials of src/judge/select_trials.cpp.
#include "cli/check/jobs.h"

#include <algorithm>

#include "base/check.h"
#include "judge/select_trials.h"
#include "judge/trials.h"
#include "pattern/smallest_shape.h"
#include "runtime/gpu.h"
#include "runtime/registry.h"
#include "runtime/select_registry.h"

namespace keyhole::cli {
namespace {

using judge::AnySelectCase, judge::kLongestFullyChecked, judge::SelectSubject, judge::Subject;

// The definitions of a selection look at every pair of every index head.
constexpr int64_t kMostSelectPairs = int64_t{1} << 20;

// Whether the options leave a kernel in.
template <class Kernel>
bool is_named(const Kernel& kernel, const CheckOptions& options) {
  if (!options.device.is_auto() && kernel.device != options.device.settle("check").kind)
    return false;
  if (!options.dtype.empty() && kernel.dtype != index_dtype_from(options.dtype)) return false;
  return std::string(kernel.name).find(options.kernel) != std::string::npos;
}

bool is_wanted(const KernelEntry& kernel, const CheckOptions& options, const Device& gpu) {
  const bool is_here =
      kernel.device == Device::Kind::cpu || (is_gpu(gpu) && why_not_here(kernel).empty());
  return is_here && kernel.weights == weights_of(options.normalizer.settle("check")) &&
         is_named(kernel, options);
}

bool is_wanted(const SelectKernel& kernel, const CheckOptions& options, const Device& gpu) {
  bool is_here = kernel.device == Device::Kind::cpu;
  if (!is_here && is_gpu(gpu)) {
    const int capability = keyhole::gpu(gpu).compute_capability;
    is_here =
        capability >= kernel.min_compute_capability && capability <= kernel.max_compute_capability;
  }
  return is_here && is_named(kernel, options);
}

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
std::vector<Shape> shapes_for(const Pattern& pattern, const CheckOptions& options) {
  if (options.shape.is_given()) {
    const Shape shape = options.shape.shape("check", pattern);
    // Short of that, brute force answers within seconds.
    KEYHOLE_CHECK(std::max(shape.q_len, shape.k_len) <= 131072, "check: lengths ", shape.q_len,
                  " and ", shape.k_len, " would take minutes; accepted are up to 131072");
    return {shape};
  }
  std::vector<std::pair<int64_t, int64_t>> lengths = {{67, 67}, {45, 131}};
  if (options.all)
    lengths.insert(lengths.end(),
                   {{0, 5}, {1, 1}, {1, 200}, {128, 128}, {129, 255}, {90, 33}, {257, 257}});
  std::vector<Shape> shapes;
  const auto add_shape = [&](int64_t q_len, int64_t k_len) {
    const Shape shape = smallest_shape(pattern, q_len, k_len);
    if (fits(pattern, shape)) shapes.push_back(shape);
  };
  for (const auto& [q_len, k_len] : lengths) add_shape(q_len, k_len);
  for (int64_t q_len = 1; q_len <= 16 && shapes.empty(); ++q_len) {
    for (int64_t k_len = 1; k_len <= 16 && shapes.empty(); ++k_len) add_shape(q_len, k_len);
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

// Makes the subject the hardest one that a kernel takes: unaligned rows; else rows at multiples of
// 16 bytes; else, unless a head_dim was requested, those with a v of head_dim 16. Why it takes
// none, or empty.
std::string fit(const KernelEntry& kernel, const judge::Trial& trial, Subject& subject,
                const CheckOptions& options) {
  // A gradient of one key sums over all queries: by brute force that takes minutes on long
  // sequences.
  if (kernel.operation == Operation::backward && subject.q_len > kLongestFullyChecked) {
    return fmt::format("{} queries; gradients are checked up to {}", subject.q_len,
                       kLongestFullyChecked);
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
  return why_not;
}

// The same for a case of a selection; the last resort is a head_dim whose rows are aligned in any
// dtype.
std::string fit(const SelectKernel& kernel, AnySelectCase& any, const CheckOptions& options) {
  if (kernel.objection == nullptr) return "";
  return std::visit(
      [&](auto& c) {
        std::string why_not = refusal_of(kernel, c);
        if (!why_not.empty()) c.layout = judge::Layout::bshd, why_not = refusal_of(kernel, c);
        if (!why_not.empty() && !options.head_dim) c.head_dim = 32, why_not = refusal_of(kernel, c);
        return why_not;
      },
      any);
}

void add_jobs_of(Jobs& jobs, const KernelEntry& kernel, const Subject& made,
                 const CheckOptions& options) {
  const std::string pattern = made.plan.pattern_text();
  for (const judge::Trial& trial : judge::trials()) {
    if (!suits(trial, kernel)) continue;
    Subject subject = made;
    if (const std::string why_not = fit(kernel, trial, subject, options); !why_not.empty()) {
      jobs.skip({kernel.name, pattern, why_not});
      continue;
    }
    const auto tiles = options.all ? kernel.tiles : std::vector{pick_tile(kernel, made.plan)};
    for (const TileShape& tile : tiles) {
      const auto run = [&kernel, &trial, tile, subject] {
        return trial.run(kernel, tile, subject);
      };
      jobs.all.push_back({kernel.name, trial.name, pattern, made.plan.shape(), tile, run});
    }
  }
}

void add_jobs_of(Jobs& jobs, const SelectKernel& kernel, const SelectSubject& subject,
                 const CheckOptions& options) {
  const std::string pattern = subject.visible ? subject.visible->text() : "";
  const Shape& shape = subject.shape;
  if (shape.batch * shape.heads * shape.q_len * shape.k_len > kMostSelectPairs) {
    return jobs.skip({kernel.name, pattern,
                      fmt::format("{} x {} pairs; selections are checked up to {} pairs",
                                  shape.q_len, shape.k_len, kMostSelectPairs)});
  }
  for (const judge::SelectTrial& trial : judge::select_trials()) {
    if (trial.operation != kernel.operation) continue;
    for (AnySelectCase& c : trial.cases(kernel, subject)) {
      if (const std::string why_not = fit(kernel, c, options); !why_not.empty()) {
        jobs.skip({kernel.name, pattern, why_not});
        continue;
      }
      const auto run = [&kernel, c] {
        return std::visit([&](const auto& known) { return run_and_judge(kernel, known); }, c);
      };
      jobs.all.push_back({kernel.name, trial.name, pattern, shape, kernel.tile, run});
    }
  }
}

}  // namespace

void Jobs::skip(const Skipped& item) {
  if (skipped.empty() || skipped.back() != item) skipped.push_back(item);
}

void add_attention_jobs(Jobs& jobs, const Pattern& pattern, const CheckOptions& options,
                        const Device& gpu) {
  for (const Shape& shape : shapes_for(pattern, options)) {
    const Subject subject = make_subject(pattern, shape, options, gpu);
    for (const KernelEntry& kernel : kernel_table()) {
      if (is_wanted(kernel, options, gpu)) add_jobs_of(jobs, kernel, subject, options);
    }
  }
}

void add_select_jobs(Jobs& jobs, const std::optional<Pattern>& visible, const CheckOptions& options,
                     const Device& gpu) {
  const Pattern pattern = visible.value_or(dense());
  std::vector<Shape> shapes = shapes_for(pattern, options);
  // Besides what attention is checked with, a row that is long for kernels that select: they sample
  // it, or several blocks of threads share it.
  const Shape long_rows = smallest_shape(pattern, 2, 5003);
  const bool is_one = long_rows.batch == 1 && long_rows.heads == 1;
  if (!options.shape.is_given() && is_one && fits(pattern, long_rows)) shapes.push_back(long_rows);
  for (const Shape& shape : shapes) {
    const SelectSubject subject = make_subject(visible, shape, options, gpu);
    for (const SelectKernel& kernel : select_table()) {
      if (is_wanted(kernel, options, gpu)) add_jobs_of(jobs, kernel, subject, options);
    }
  }
}

}  // namespace keyhole::cli
