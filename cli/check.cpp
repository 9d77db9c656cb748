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
#include "cli/command_line.h"
#include "pattern/catalog.h"

namespace keyhole::cli {
namespace {

// The worst run of each (kernel, trial), in the order of the tables.
struct Line {
  const Job* worst;
  int64_t count, failed;
};

std::vector<Line> lines_of(const Jobs& jobs) {
  std::vector<Line> lines;
  std::map<std::pair<std::string, std::string>, size_t> known;
  for (const Job& job : jobs.all) {
    const auto [place, is_new] = known.try_emplace({job.kernel, job.trial}, lines.size());
    if (is_new) lines.push_back({&job, 0, 0});
    Line& line = lines[place->second];
    ++line.count;
    line.failed += !job.is_passed();
    if (job.finding.ratio() > line.worst->finding.ratio()) line.worst = &job;
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
  const Normalizer normalizer = options.normalizer.settle("check");
  if (normalizer.alpha != 1) command += fmt::format(" --alpha {}", normalizer.alpha);
  if (normalizer.top_k > 0) command += fmt::format(" --top-k {}", normalizer.top_k);
  if (options.head_dim) command += fmt::format(" --head-dim {}", *options.head_dim);
  if (options.all) command += " --all";
  if (!options.device.is_auto()) command += " --device " + options.device.text;
  return command;
}

void report_text(const Jobs& jobs, int64_t failed, const CheckOptions& options) {
  Table table({"kernel", "case", "runs", "max error", "allowed", "verdict"}, "llrrrl");
  for (const Line& line : lines_of(jobs)) {
    const judge::Finding& finding = line.worst->finding;
    table.add({line.worst->kernel, line.worst->trial, std::to_string(line.count),
               fmt::format("{:.1e}", finding.error), fmt::format("{:.1e}", finding.allowed),
               line.failed ? fmt::format("FAILED {}", line.failed) : "ok"},
              line.failed ? Ink::red : Ink::plain);
  }
  std::set<std::pair<std::string, std::string>> told;  // a reason is often that of many patterns
  for (const Skipped& skipped : jobs.skipped) {
    if (!told.insert({skipped.kernel, skipped.why}).second) continue;
    table.add({skipped.kernel, "not checked: " + skipped.why, "0", "", "", "skipped"}, Ink::dim);
  }
  write_out(table.text());
  int shown = 0;
  std::set<std::string> patterns;
  for (const Job& job : jobs.all) {
    if (!job.pattern.empty()) patterns.insert(job.pattern);
    if (job.is_passed() || ++shown > 5) continue;
    print("\nfailed: {}, {}, tile {}\n  {}\n  again: {}\n", job.kernel, job.trial,
          to_string(job.tile), job.finding.complaint, again(job, options));
  }
  print(
      "\n{} checks of {} pattern{}: {}\n", jobs.all.size(), patterns.size(),
      patterns.size() == 1 ? "" : "s",
      failed ? paint(Ink::red, fmt::format("{} failed", failed)) : paint(Ink::green, "all passed"));
}

Json pattern_json(const std::string& pattern) { return pattern.empty() ? Json() : Json(pattern); }

Json report_json(const Jobs& jobs, int64_t failed, const CheckOptions& options) {
  Json outcomes = Json::array(), skipped = Json::array();
  for (const Job& job : jobs.all) {
    outcomes.push_back({{"kernel", job.kernel},
                        {"case", job.trial},
                        {"pattern", pattern_json(job.pattern)},
                        {"q_len", job.shape.q_len},
                        {"k_len", job.shape.k_len},
                        {"tile", to_string(job.tile)},
                        {"error", job.finding.error},
                        {"allowed", job.finding.allowed},
                        {"passed", job.is_passed()}});
    if (job.is_passed()) continue;
    outcomes.back()["complaint"] = job.finding.complaint;
    outcomes.back()["again"] = again(job, options);
  }
  for (const Skipped& item : jobs.skipped) {
    skipped.push_back(
        {{"kernel", item.kernel}, {"pattern", pattern_json(item.pattern)}, {"why", item.why}});
  }
  return {{"seed", options.seed},
          {"normalizer", to_string(options.normalizer.settle("check"))},
          {"checks", jobs.all.size()},
          {"failed", failed},
          {"outcomes", std::move(outcomes)},
          {"skipped", std::move(skipped)}};
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
  check_range("check: --head-dim", options.head_dim.value_or(1), 1, 576);
  Jobs jobs = jobs_of(options);
  KEYHOLE_CHECK(!jobs.all.empty(), "check: no kernel was left to check; ",
                options.kernel.empty()
                    ? ""
                    : say("--kernel leaves those with \"", options.kernel, "\" in their name; "),
                normalizer.is_plain_softmax()
                    ? ""
                    : "--alpha and --top-k leave only the kernels of entmax and top-K attention; ",
                "keyhole info lists them");
  {
    Progress progress("check", int64_t(jobs.all.size()));
    for (Job& job : jobs.all) {
      progress.step(say(job.kernel, ", ", job.pattern.empty() ? job.trial : job.pattern));
      job.finding = job.run();
    }
  }
  const int64_t passed = std::ranges::count_if(jobs.all, &Job::is_passed);
  const int64_t failed = int64_t(jobs.all.size()) - passed;
  if (context.json) {
    print_json(report_json(jobs, failed, options));
  } else {
    report_text(jobs, failed, options);
  }
  return failed == 0 ? kDone : kCheckFailed;
}

}  // namespace

Runner add_check(CLI::App& app, Context& context) {
  auto options = std::make_shared<CheckOptions>();
  add(app, {{"pattern", &options->pattern, "default: every example of the catalog"}});
  options->shape.add_to(app);
  add(app, {{"--dtype DTYPE", &options->dtype, "only kernels of this dtype; e4m3: of indexers"},
            {"--head-dim N", &options->head_dim,
             "of q, k and v, and of an indexer; default: 24, 17 of v"},
            {"--kernel NAME", &options->kernel, "only kernels with this in their name"}});
  options->normalizer.add_to(app);
  options->device.add_to(app, "the CPU and the first GPU");
  add(app, {{"--seed N", &options->seed, "of the random inputs; default: 1"},
            {"--all", &options->all, "every tile shape of every kernel, and more lengths"},
            json_option(context)});
  app.footer(
      "exit status 1 when a check fails\n\n"
      "examples:\n"
      "  keyhole check\n"
      "  keyhole check \"causal & window(100)\" --len 700 --head-dim 64\n"
      "  keyhole check --kernel forward.bf16 --all\n"
      "  keyhole check --alpha 1.5 --top-k 8              entmax and top-K attention alone\n"
      "  keyhole check causal --len 300 --kernel top_k    selections, of what is causal\n"
      "  keyhole check --device gpu --head-dim 128");
  return [options, &app, &context] {
    KEYHOLE_CHECK(
        app.get_option("pattern")->empty() || !options->pattern.empty(),
        "check: the pattern is \"\"; pass one, such as \"causal & window(256)\", or leave it "
        "out to check every example of the catalog");
    return check(*options, context);
  };
}

}  // namespace keyhole::cli
