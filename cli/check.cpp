// cli/check.cpp
// keyhole check: every kernel of attention and of selections against the fp64 reference, on hostile
// inputs. What is run is decided in cli/check/.
#include "base/check.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "cli/check/jobs.h"
#include "cli/verbs.h"
#include "pattern/catalog.h"

namespace keyhole::cli {
namespace {

using judge::Finding;

struct Outcome {
  const Job* job;
  Finding finding;
};

struct Report {
  Jobs jobs;
  std::vector<Outcome> outcomes;
};

// The worst outcome of each (kernel, trial), in the order of the tables.
struct Line {
  const Outcome* worst;
  int64_t count, failed;
};

std::vector<Line> lines_of(const std::vector<Outcome>& outcomes) {
  std::vector<Line> lines;
  std::map<std::pair<std::string, std::string>, size_t> known;
  for (const Outcome& outcome : outcomes) {
    const auto [place, is_new] =
        known.try_emplace({outcome.job->kernel, outcome.job->trial}, lines.size());
    if (is_new) lines.push_back({&outcome, 0, 0});
    Line& line = lines[place->second];
    ++line.count;
    line.failed += !outcome.finding.complaint.empty();
    if (outcome.finding.ratio() > line.worst->finding.ratio()) line.worst = &outcome;
  }
  return lines;
}

// Without a pattern, selections are checked on patterns and lengths of their own.
std::string again(const Job& job, const CheckOptions& options) {
  std::string command = "keyhole check";
  if (!job.pattern.empty()) {
    command +=
        fmt::format(" \"{}\" --q-len {} --k-len {}", job.pattern, job.shape.q_len, job.shape.k_len);
    if (job.shape.offset) command += fmt::format(" --offset {}", *job.shape.offset);
    if (options.shape.heads) command += fmt::format(" --heads {}", *options.shape.heads);
    if (options.shape.batch) command += fmt::format(" --batch {}", *options.shape.batch);
  }
  command += fmt::format(" --kernel {} --seed {}", job.kernel, options.seed);
  command += NormalizerOption::text_of(options.normalizer.settle("check"));
  if (options.head_dim) command += fmt::format(" --head-dim {}", *options.head_dim);
  if (options.all) command += " --all";
  if (!options.device.is_auto()) command += " --device " + options.device.text();
  return command;
}

int64_t patterns_of(const std::vector<Outcome>& outcomes) {
  std::set<std::string> patterns;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.job->pattern.empty()) patterns.insert(outcome.job->pattern);
  }
  return int64_t(patterns.size());
}

void report_text(const Report& report, const CheckOptions& options) {
  const std::vector<Outcome>& outcomes = report.outcomes;
  Table table({"kernel", "case", "runs", "max error", "allowed", "verdict"}, "llrrrl");
  int64_t failed = 0;
  for (const Line& line : lines_of(outcomes)) {
    const Finding& finding = line.worst->finding;
    table.add({line.worst->job->kernel, line.worst->job->trial, std::to_string(line.count),
               fmt::format("{:.1e}", finding.error), fmt::format("{:.1e}", finding.allowed),
               line.failed ? fmt::format("FAILED {}", line.failed) : "ok"},
              line.failed ? Ink::red : Ink::plain);
    failed += line.failed;
  }
  std::set<std::pair<std::string, std::string>> told;  // a reason is often that of many patterns
  for (const Skipped& skipped : report.jobs.skipped) {
    if (!told.insert({skipped.kernel, skipped.why}).second) continue;
    table.add({skipped.kernel, "not checked: " + skipped.why, "0", "", "", "skipped"}, Ink::dim);
  }
  write_out(table.text());
  int shown = 0;
  for (const Outcome& outcome : outcomes) {
    if (outcome.finding.complaint.empty() || ++shown > 5) continue;
    const Job& job = *outcome.job;
    print("\nfailed: {}, {}, tile {}\n  {}\n  again: {}\n", job.kernel, job.trial,
          to_string(job.tile), outcome.finding.complaint, again(job, options));
  }
  const int64_t patterns = patterns_of(outcomes);
  print(
      "\n{} checks of {} pattern{}: {}\n", outcomes.size(), patterns, patterns == 1 ? "" : "s",
      failed ? paint(Ink::red, fmt::format("{} failed", failed)) : paint(Ink::green, "all passed"));
}

Json pattern_json(const std::string& pattern) { return pattern.empty() ? Json() : Json(pattern); }

Json report_json(const Report& report, const CheckOptions& options) {
  const std::vector<Outcome>& outcomes = report.outcomes;
  Json list = Json::array();
  int64_t failed = 0;
  for (const Outcome& outcome : outcomes) {
    const Job& job = *outcome.job;
    const bool is_passed = outcome.finding.complaint.empty();
    failed += !is_passed;
    list.push_back({{"kernel", job.kernel},
                    {"case", job.trial},
                    {"pattern", pattern_json(job.pattern)},
                    {"q_len", job.shape.q_len},
                    {"k_len", job.shape.k_len},
                    {"tile", to_string(job.tile)},
                    {"error", outcome.finding.error},
                    {"allowed", outcome.finding.allowed},
                    {"passed", is_passed}});
    if (!is_passed)
      list.back()["complaint"] = outcome.finding.complaint,
      list.back()["again"] = again(job, options);
  }
  Json skipped = Json::array();
  for (const Skipped& item : report.jobs.skipped) {
    skipped.push_back(
        {{"kernel", item.kernel}, {"pattern", pattern_json(item.pattern)}, {"why", item.why}});
  }
  return {
      {"seed", options.seed},        {"normalizer", to_string(options.normalizer.settle("check"))},
      {"checks", outcomes.size()},   {"failed", failed},
      {"outcomes", std::move(list)}, {"skipped", std::move(skipped)}};
}

Jobs jobs_of(const CheckOptions& options) {
  // Kernels of the CPU are checked whether there is a GPU or not, unless one of them is asked for.
  const Device gpu = options.device.settle("check");
  // Selections have no normalizer: with one, attention alone is checked.
  const bool has_selections = options.normalizer.settle("check").is_plain_softmax();
  Jobs jobs;
  if (!options.pattern.empty()) {
    const Pattern pattern = pattern_from("check", options.pattern);
    add_attention_jobs(jobs, pattern, options, gpu);
    if (has_selections) add_select_jobs(jobs, pattern, options, gpu);
    return jobs;
  }
  KEYHOLE_CHECK(!options.shape.is_given(),
                "check: lengths go with a pattern; without one, the examples of the catalog are "
                "checked on lengths of their own");
  for (const CatalogEntry& entry : catalog()) {
    add_attention_jobs(jobs, parse(entry.example), options, gpu);
  }
  if (!has_selections) return jobs;
  add_select_jobs(jobs, {}, options, gpu);
  for (const char* visible :
       {"causal & (window(20) | dilated(3))", "per_head(causal, window(9), ~dense)"}) {
    add_select_jobs(jobs, parse(visible), options, gpu);
  }
  return jobs;
}

int check(const CheckOptions& options, const Context& context) {
  if (!options.dtype.empty()) index_dtype_from(options.dtype);
  const Normalizer normalizer = options.normalizer.settle("check");
  if (options.head_dim) {
    KEYHOLE_CHECK(*options.head_dim >= 1 && *options.head_dim <= 576, "check: --head-dim is ",
                  *options.head_dim, "; accepted are 1 to 576");
  }
  Report report{jobs_of(options), {}};
  KEYHOLE_CHECK(!report.jobs.all.empty(), "check: no kernel was left to check; ",
                normalizer.is_plain_softmax()
                    ? ""
                    : "--alpha and --top-k leave only the kernels of entmax and top-K attention; ",
                "keyhole info lists them");
  {
    Progress progress("check", int64_t(report.jobs.all.size()));
    for (const Job& job : report.jobs.all) {
      progress.step(say(job.kernel, ", ", job.pattern.empty() ? job.trial : job.pattern));
      report.outcomes.push_back({&job, job.run()});
    }
  }
  if (context.json) {
    print_json(report_json(report, options));
  } else {
    report_text(report, options);
  }
  const bool is_passed = std::ranges::all_of(
      report.outcomes, [](const Outcome& outcome) { return outcome.finding.complaint.empty(); });
  return is_passed ? kDone : kCheckFailed;
}

}  // namespace

Runner add_check(CLI::App& app, Context& context) {
  auto options = std::make_shared<CheckOptions>();
  const CLI::Option* pattern =
      app.add_option("pattern", options->pattern, "default: every example of the catalog")
          ->type_name("");
  options->shape.add_to(app);
  app.add_option("--dtype", options->dtype, "only kernels of this dtype; e4m3: of indexers")
      ->type_name("DTYPE");
  add_integer(app, "--head-dim", options->head_dim,
              "of q, k and v, and of an indexer; default: 24, 17 of v");
  app.add_option("--kernel", options->kernel, "only kernels with this in their name")
      ->type_name("NAME");
  options->normalizer.add_to(app);
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
      "  keyhole check --alpha 1.5 --top-k 8              entmax and top-K attention alone\n"
      "  keyhole check causal --len 300 --kernel top_k    selections, of what is causal\n"
      "  keyhole check --device gpu --head-dim 128");
  return [options, pattern, &context] {
    KEYHOLE_CHECK(
        pattern->empty() || !options->pattern.empty(),
        "check: the pattern is \"\"; pass one, such as \"causal & window(256)\", or leave it "
        "out to check every example of the catalog");
    return check(*options, context);
  };
}

}  // namespace keyhole::cli
