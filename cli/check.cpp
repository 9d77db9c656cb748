// cli/check.cpp
// keyhole check: every kernel of the table against the fp64 reference, on hostile inputs.
#include "base/check.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "cli/check/trials.h"
#include "cli/device.h"
#include "cli/verbs.h"
#include "pattern/catalog.h"
#include "pattern/smallest_shape.h"
#include "runtime/dispatch.h"
#include "runtime/registry.h"

namespace keyhole::cli {
namespace {

struct Options {
  std::string pattern, dtype, kernel;
  DeviceOption device;
  ShapeOptions shape;
  std::optional<int64_t> head_dim;
  int64_t seed = 1;
  bool all = false;
};

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

Subject make_subject(const Pattern& pattern, const Shape& shape, const Options& options,
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

struct Outcome {
  std::string kernel, trial, pattern;
  Shape shape;
  TileShape tile;
  Finding finding;
};

struct Skipped {
  std::string kernel, pattern, why;
  bool operator==(const Skipped&) const = default;
};
struct Report {
  std::vector<Outcome> outcomes;
  std::vector<Skipped> skipped;
};

std::vector<TileShape> tiles_to_try(const KernelEntry& kernel, const Plan& plan, bool all) {
  if (all) return kernel.tiles;
  return {pick_tile(kernel, plan)};
}

bool is_wanted(const KernelEntry& kernel, const Options& options, const Device& gpu) {
  if (kernel.device != Device::Kind::cpu && (!is_gpu(gpu) || !why_not_here(kernel).empty())) {
    return false;
  }
  if (!options.device.is_auto() && kernel.device != options.device.settle("check").kind) {
    return false;
  }
  if (!options.dtype.empty() && kernel.dtype != dtype_from(options.dtype)) return false;
  return kernel.name.find(options.kernel) != std::string::npos;
}

// What is put to one trial, as the kernel takes it; or why it does not.
struct Fitted {
  Subject subject;
  std::string why_not;
};

// The worst that a kernel takes: rows anywhere, else rows at multiples of 16 bytes, and then, where
// nobody asked for a head_dim, one of v that such rows are made for.
Fitted fit(const KernelEntry& kernel, const Trial& trial, Subject subject, const Options& options) {
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
    request.has_softcap = trial.has_softcap;
    request.is_aligned = subject.is_aligned;
    return refusal(kernel, request);
  };
  std::string why_not = refusal_now();
  if (!why_not.empty()) subject.is_aligned = true, why_not = refusal_now();
  if (!why_not.empty() && !options.head_dim) subject.v_head_dim = 16, why_not = refusal_now();
  return {std::move(subject), std::move(why_not)};
}

// One kernel, one trial, one subject; as many runs as tiles are tried.
struct Job {
  const KernelEntry* kernel;
  const Trial* trial;
  Subject subject;
  std::vector<TileShape> tiles;
};

std::vector<Job> jobs_for(const std::vector<Subject>& subjects, const Options& options,
                          const Device& gpu, Report& report) {
  std::vector<Job> jobs;
  for (const Subject& subject : subjects) {
    for (const KernelEntry& kernel : kernel_table()) {
      if (!is_wanted(kernel, options, gpu)) continue;
      for (const Trial& trial : trials()) {
        if (trial.operation != kernel.operation) continue;
        Fitted fitted = fit(kernel, trial, subject, options);
        if (fitted.why_not.empty()) {
          jobs.push_back({&kernel, &trial, std::move(fitted.subject),
                          tiles_to_try(kernel, subject.plan, options.all)});
          continue;
        }
        const Skipped skipped{kernel.name, subject.plan.pattern_text(), fitted.why_not};
        if (report.skipped.empty() || report.skipped.back() != skipped) {
          report.skipped.push_back(skipped);  // once for all trials that it keeps from running
        }
      }
    }
  }
  return jobs;
}

void run_job(const Job& job, Progress& progress, Report& report) {
  const Subject& subject = job.subject;
  for (const TileShape& tile : job.tiles) {
    progress.step(say(job.kernel->name, ", ", subject.plan.pattern_text()));
    report.outcomes.push_back({job.kernel->name, job.trial->name, subject.plan.pattern_text(),
                               subject.plan.shape(), tile,
                               job.trial->run(*job.kernel, tile, subject)});
  }
}

// The worst outcome of each (kernel, trial), in the order of the tables.
struct Line {
  const Outcome* worst;
  int64_t count, failed;
};

std::vector<Line> lines_of(const std::vector<Outcome>& outcomes) {
  std::vector<Line> lines;
  std::map<std::pair<std::string, std::string>, size_t> known;
  for (const Outcome& outcome : outcomes) {
    const auto [place, is_new] = known.try_emplace({outcome.kernel, outcome.trial}, lines.size());
    if (is_new) lines.push_back({&outcome, 0, 0});
    Line& line = lines[place->second];
    ++line.count;
    line.failed += !outcome.finding.complaint.empty();
    if (outcome.finding.ratio() > line.worst->finding.ratio()) line.worst = &outcome;
  }
  return lines;
}

std::string again(const Outcome& outcome, const Options& options) {
  std::string command = fmt::format(
      "keyhole check \"{}\" --q-len {} --k-len {} --kernel {} --seed {}", outcome.pattern,
      outcome.shape.q_len, outcome.shape.k_len, outcome.kernel, options.seed);
  if (options.head_dim) command += fmt::format(" --head-dim {}", *options.head_dim);
  if (options.all) command += " --all";
  if (!options.device.is_auto()) command += " --device " + options.device.text();
  return command;
}

void report_text(const Report& report, const Options& options, int64_t patterns) {
  const std::vector<Outcome>& outcomes = report.outcomes;
  Table table({"kernel", "case", "runs", "max error", "allowed", "verdict"}, "llrrrl");
  int64_t failed = 0;
  for (const Line& line : lines_of(outcomes)) {
    const Finding& finding = line.worst->finding;
    table.add({line.worst->kernel, line.worst->trial, std::to_string(line.count),
               fmt::format("{:.1e}", finding.error), fmt::format("{:.1e}", finding.allowed),
               line.failed ? fmt::format("FAILED {}", line.failed) : "ok"},
              line.failed ? Ink::red : Ink::plain);
    failed += line.failed;
  }
  std::set<std::pair<std::string, std::string>> told;  // a reason is often that of many patterns
  for (const Skipped& skipped : report.skipped) {
    if (!told.insert({skipped.kernel, skipped.why}).second) continue;
    table.add({skipped.kernel, "not checked: " + skipped.why, "0", "", "", "skipped"}, Ink::dim);
  }
  write_out(table.text());
  int shown = 0;
  for (const Outcome& outcome : outcomes) {
    if (outcome.finding.complaint.empty() || ++shown > 5) continue;
    print("\nfailed: {}, {}, tile {}\n  {}\n  again: {}\n", outcome.kernel, outcome.trial,
          to_string(outcome.tile), outcome.finding.complaint, again(outcome, options));
  }
  print(
      "\n{} checks of {} pattern{}: {}\n", outcomes.size(), patterns, patterns == 1 ? "" : "s",
      failed ? paint(Ink::red, fmt::format("{} failed", failed)) : paint(Ink::green, "all passed"));
}

Json report_json(const Report& report, const Options& options) {
  const std::vector<Outcome>& outcomes = report.outcomes;
  Json list = Json::array();
  int64_t failed = 0;
  for (const Outcome& outcome : outcomes) {
    const bool is_passed = outcome.finding.complaint.empty();
    failed += !is_passed;
    list.push_back({{"kernel", outcome.kernel},
                    {"case", outcome.trial},
                    {"pattern", outcome.pattern},
                    {"q_len", outcome.shape.q_len},
                    {"k_len", outcome.shape.k_len},
                    {"tile", to_string(outcome.tile)},
                    {"error", outcome.finding.error},
                    {"allowed", outcome.finding.allowed},
                    {"passed", is_passed}});
    if (!is_passed)
      list.back()["complaint"] = outcome.finding.complaint,
      list.back()["again"] = again(outcome, options);
  }
  Json skipped = Json::array();
  for (const Skipped& item : report.skipped) {
    skipped.push_back({{"kernel", item.kernel}, {"pattern", item.pattern}, {"why", item.why}});
  }
  return {{"seed", options.seed},
          {"checks", outcomes.size()},
          {"failed", failed},
          {"outcomes", std::move(list)},
          {"skipped", std::move(skipped)}};
}

int check(const Options& options, const Context& context) {
  if (!options.dtype.empty()) dtype_from(options.dtype);
  if (options.head_dim) {
    KEYHOLE_CHECK(*options.head_dim >= 1 && *options.head_dim <= 576, "check: --head-dim is ",
                  *options.head_dim, "; accepted are 1 to 576");
  }
  // Kernels of the CPU are checked whether there is a GPU or not, unless one of them is asked for.
  const Device gpu = options.device.settle("check");
  std::vector<Subject> subjects;
  int64_t patterns = 0;
  const auto add = [&](const Pattern& pattern) {
    ++patterns;
    if (options.shape.is_given()) {
      const Shape shape = options.shape.shape("check", pattern);
      // Short of that, brute force answers within seconds.
      KEYHOLE_CHECK(std::max(shape.q_len, shape.k_len) <= 131072, "check: lengths ", shape.q_len,
                    " and ", shape.k_len, " would take minutes; accepted are up to 131072");
      subjects.push_back(make_subject(pattern, shape, options, gpu));
      return;
    }
    for (const Shape& shape : shapes_for(pattern, options.all))
      subjects.push_back(make_subject(pattern, shape, options, gpu));
  };
  if (!options.pattern.empty()) {
    add(pattern_from("check", options.pattern));
  } else {
    KEYHOLE_CHECK(!options.shape.is_given(),
                  "check: lengths go with a pattern; without one, the examples of the catalog are "
                  "checked on lengths of their own");
    for (const CatalogEntry& entry : catalog()) add(parse(entry.example));
  }
  Report report;
  {
    const std::vector<Job> jobs = jobs_for(subjects, options, gpu, report);
    int64_t total = 0;
    for (const Job& job : jobs) total += int64_t(job.tiles.size());
    Progress progress("check", total);
    for (const Job& job : jobs) run_job(job, progress, report);
  }
  const std::vector<Outcome>& outcomes = report.outcomes;
  KEYHOLE_CHECK(!outcomes.empty(), "check: no kernel was left to check; keyhole info lists them");
  if (context.json) {
    print_json(report_json(report, options));
  } else {
    report_text(report, options, patterns);
  }
  const bool is_passed = std::all_of(outcomes.begin(), outcomes.end(), [](const Outcome& outcome) {
    return outcome.finding.complaint.empty();
  });
  return is_passed ? kDone : kCheckFailed;
}

}  // namespace

Runner add_check(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  app.add_option("pattern", options->pattern, "default: every example of the catalog")
      ->type_name("");
  options->shape.add_to(app);
  app.add_option("--dtype", options->dtype, "only kernels of this dtype")->type_name("DTYPE");
  add_integer(app, "--head-dim", options->head_dim, "of q, k and v; default: 24 and 17");
  app.add_option("--kernel", options->kernel, "only kernels with this in their name")
      ->type_name("NAME");
  options->device.add_to(app, "the CPU and the first GPU");
  add_integer(app, "--seed", options->seed, "of the random inputs; default: 1");
  app.add_flag("--all", options->all, "every tile shape of every kernel, and more lengths");
  add_json_option(app, context);
  app.footer(
      "exit status 1 when a check fails\n\n"
      "examples:\n"
      "  keyhole check\n"
      "  keyhole check \"causal & window(100)\" --len 700 --head-dim 64\n"
      "  keyhole check --kernel forward.bf16 --all\n"
      "  keyhole check --device gpu --head-dim 128");
  return [options, &context] { return check(*options, context); };
}

}  // namespace keyhole::cli
