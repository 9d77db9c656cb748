// cli/check.cpp
// keyhole check: every kernel of the table against the fp64 reference, on hostile inputs. What is
// run is decided in cli/check/jobs.cpp.
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

struct Outcome {
  std::string kernel, trial, pattern;
  Shape shape;
  TileShape tile;
  Finding finding;
};

struct Report {
  std::vector<Outcome> outcomes;
  std::vector<Skipped> skipped;
};

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

std::string again(const Outcome& outcome, const CheckOptions& options) {
  std::string command = fmt::format(
      "keyhole check \"{}\" --q-len {} --k-len {} --kernel {} --seed {}", outcome.pattern,
      outcome.shape.q_len, outcome.shape.k_len, outcome.kernel, options.seed);
  command += NormalizerOption::text_of(options.normalizer.settle("check"));
  if (options.head_dim) command += fmt::format(" --head-dim {}", *options.head_dim);
  if (options.all) command += " --all";
  if (!options.device.is_auto()) command += " --device " + options.device.text();
  return command;
}

void report_text(const Report& report, const CheckOptions& options, int64_t patterns) {
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

Json report_json(const Report& report, const CheckOptions& options) {
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
  return {
      {"seed", options.seed},        {"normalizer", to_string(options.normalizer.settle("check"))},
      {"checks", outcomes.size()},   {"failed", failed},
      {"outcomes", std::move(list)}, {"skipped", std::move(skipped)}};
}

int check(const CheckOptions& options, const Context& context) {
  if (!options.dtype.empty()) dtype_from(options.dtype);
  options.normalizer.settle("check");
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
    for (Subject& subject : subjects_for(pattern, options, gpu)) {
      subjects.push_back(std::move(subject));
    }
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
    Jobs jobs = jobs_for(subjects, options, gpu);
    report.skipped = std::move(jobs.skipped);
    int64_t total = 0;
    for (const Job& job : jobs.all) total += int64_t(job.tiles.size());
    Progress progress("check", total);
    for (const Job& job : jobs.all) run_job(job, progress, report);
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
  auto options = std::make_shared<CheckOptions>();
  const CLI::Option* pattern =
      app.add_option("pattern", options->pattern, "default: every example of the catalog")
          ->type_name("");
  options->shape.add_to(app);
  app.add_option("--dtype", options->dtype, "only kernels of this dtype")->type_name("DTYPE");
  add_integer(app, "--head-dim", options->head_dim, "of q, k and v; default: 24 and 17");
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
      "  keyhole check --alpha 1.5 --top-k 8              entmax and top-K instead of softmax\n"
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
