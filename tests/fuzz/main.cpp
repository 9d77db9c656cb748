// tests/fuzz/main.cpp
// keyhole_fuzz: seeds to cases, cases to verdicts. On a failure it prints the line that repeats it,
// shrinks it, prints the line that repeats the smaller one, and exits with 1.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include "base/check.h"
#include "fuzz/workers.h"
#include "runtime/gpu.h"
#include "support/check_plan.h"
#include "support/generator.h"
#include "support/ledger.h"
#include "support/scale.h"
#include "support/shrink.h"

namespace keyhole::fuzz {
namespace {

using namespace keyhole::test;

constexpr const char* kHelp =
    "keyhole_fuzz [options]\n"
    "  --seed S         the first seed (default 1); case i is drawn from seed S + i\n"
    "  --cases N        kernel cases: plan, forward, backward, probes, poison, laws (default "
    "1000)\n"
    "  --plans N        (pattern, q_len, k_len, tile) combinations, every pair compared (default "
    "0)\n"
    "  --gpu            kernel cases for a GPU: their tensors are made there, and judged there\n"
    "  --time SECONDS   stop each of the two after that long (default: no limit)\n"
    "  --workers N      processes (default: one per core)\n"
    "  --ledger FILE    append a line about this run\n"
    "  --case LINE      run one case as printed by a failure\n"
    "  --plan-case LINE the same for a plan\n"
    "  --show           print the drawn cases instead of running them\n"
    "KEYHOLE_TEST_SCALE=PERCENT scales both counts.\n";

struct Options {
  uint64_t seed = 1;
  int64_t cases = 1000, plans = 0;
  double seconds = 0;
  int workers = std::max(1u, std::thread::hardware_concurrency());
  std::string ledger, one_case, one_plan_case;
  bool only_shows = false, on_gpu = false;
};

Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--help") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    if (flag == "--show") {
      options.only_shows = true;
      continue;
    }
    if (flag == "--gpu") {
      options.on_gpu = true;
      continue;
    }
    KEYHOLE_CHECK(i + 1 < argc, flag, ": a value is missing\n", kHelp);
    const std::string value = argv[++i];
    const auto number = [&] {
      char* end = nullptr;
      const double result = std::strtod(value.c_str(), &end);
      KEYHOLE_CHECK(!value.empty() && *end == 0 && result >= 0, flag, ": got '", value,
                    "'; expected a number");
      return result;
    };
    if (flag == "--seed")
      options.seed = std::strtoull(value.c_str(), nullptr, 0);
    else if (flag == "--cases")
      options.cases = int64_t(number());
    else if (flag == "--plans")
      options.plans = int64_t(number());
    else if (flag == "--time")
      options.seconds = number();
    else if (flag == "--workers")
      options.workers = std::max(1, int(number()));
    else if (flag == "--ledger")
      options.ledger = value;
    else if (flag == "--case")
      options.one_case = value;
    else if (flag == "--plan-case")
      options.one_plan_case = value;
    else
      throw Error(ErrorKind::usage, say("unknown option ", flag, "\n", kHelp));
  }
  return options;
}

// The two kinds of jobs differ in how a case is drawn and checked, and in nothing else.
struct Campaign {
  const char* name;
  const char* flag;
  const char* count_flag;
  Case (*draw)(uint64_t seed);
  Failure (*check)(const Case& c, Totals& totals);
};

Failure check_kernels(const Case& c, Totals& totals) {
  CheckStats stats;
  const Failure failure = check_case(c, &stats);
  totals.kernel_runs += stats.kernel_runs;
  totals.pairs += stats.pairs;
  totals.worst = std::max(totals.worst, stats.worst);
  totals.refused.add(stats.refused);
  if (!failure && stats.kernel_runs == 0) {
    totals.skipped.add(stats.refused.total() == 0 ? "no kernel here" : "no kernel takes it");
  }
  return failure;
}
Failure check_plans(const Case& c, Totals& totals) {
  return check_plan(c, &totals.combinations, &totals.pairs);
}
constexpr Campaign kKernels{"kernel cases", "--case", "--plans 0 --cases 1",
                            [](uint64_t seed) { return draw_case(seed); }, check_kernels};
constexpr Campaign kGpuKernels{"kernel cases for a GPU", "--gpu --case", "--gpu --cases 1",
                               draw_gpu_case, check_kernels};
constexpr Campaign kPlans{"plans", "--plan-case", "--cases 0 --plans 1", draw_plan_case,
                          check_plans};

void explain_failure(const Campaign& campaign, const Case& failing, const Failure& failure) {
  std::printf("  %s: %s\n  case: keyhole_fuzz %s '%s'\n", failure.kind.c_str(),
              failure.detail.c_str(), campaign.flag, to_text(failing).c_str());
  std::fflush(stdout);
  const auto fail = [&](const Case& c) {
    return run_isolated([&] {
      Totals unused;
      return campaign.check(c, unused);
    });
  };
  const Shrunk shrunk = shrink(failing, [&](const Case& c) { return fail(c).kind; });
  const Failure last = fail(shrunk.smallest);
  std::printf("  shrunk in %d steps (%d attempts): keyhole_fuzz %s '%s'\n  %s: %s\n", shrunk.steps,
              shrunk.attempts, campaign.flag, to_text(shrunk.smallest).c_str(), last.kind.c_str(),
              last.detail.c_str());
}

// What was drawn, and what became of it: the counts add up.
void print_counts(const Campaign& campaign, const Totals& totals) {
  std::printf("%s: %lld drawn = %lld passed + %lld failed + %lld skipped%s\n", campaign.name,
              static_cast<long long>(totals.done), static_cast<long long>(totals.passed()),
              static_cast<long long>(totals.failed), static_cast<long long>(totals.skipped.total()),
              totals.skipped.text().c_str());
  if (totals.kernel_runs == 0) return;
  const int64_t refused = totals.refused.total();
  std::printf("kernel turns: %lld = %lld kernel runs + %lld refused%s\n",
              static_cast<long long>(totals.kernel_runs + refused),
              static_cast<long long>(totals.kernel_runs), static_cast<long long>(refused),
              totals.refused.text().c_str());
}

// Runs one campaign; true when nothing failed.
bool run(const Campaign& campaign, const Options& options, int64_t count, LedgerLine& line) {
  const Outcome outcome = run_jobs(
      options.seed, count, options.seconds, options.workers,
      [&](uint64_t seed, Totals& totals) { return campaign.check(campaign.draw(seed), totals); });
  line.kernel_runs += outcome.totals.kernel_runs;
  line.pairs += outcome.totals.pairs;
  line.skipped += outcome.totals.skipped.total();
  line.refused += outcome.totals.refused.total();
  line.worst = std::max(line.worst, outcome.totals.worst);
  (&campaign == &kPlans ? line.plans : line.cases) +=
      &campaign == &kPlans ? outcome.totals.combinations : outcome.totals.done;
  print_counts(campaign, outcome.totals);
  if (!outcome.failed_seed) return true;
  ++line.failures;
  std::printf("FAILED: seed %llu of %s\n  repeat: keyhole_fuzz --seed %llu %s\n",
              static_cast<unsigned long long>(*outcome.failed_seed), campaign.name,
              static_cast<unsigned long long>(*outcome.failed_seed), campaign.count_flag);
  explain_failure(campaign, campaign.draw(*outcome.failed_seed), outcome.failure);
  return false;
}

int run_one(const Campaign& campaign, const std::string& text) {
  Totals totals;
  const Case c = parse_case(text);
  const Failure failure = campaign.check(c, totals);
  std::printf("%s: %s\n", failure ? failure.kind.c_str() : "ok", failure.detail.c_str());
  if (&campaign == &kGpuKernels) {  // the same case, judged by the reference of the CPU
    const Failure on_host = check_case(c, nullptr, Judged::on_host);
    std::printf("judged on the host: %s: %s\n", on_host ? on_host.kind.c_str() : "ok",
                on_host.detail.c_str());
  }
  return failure ? 1 : 0;
}

// Asked in a process of its own: workers could not use a driver that this one has started.
std::string why_no_gpu_here() {
  return run_isolated([] { return Failure{why_no_gpu(), why_no_gpu()}; }).detail;
}

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  const Campaign& kernels = options.on_gpu ? kGpuKernels : kKernels;
  if (options.on_gpu) {
    setenv("KEYHOLE_TEST_BACKENDS", "gpu", /*overwrite=*/0);
    if (const std::string why = why_no_gpu_here(); !why.empty() && !options.only_shows) {
      std::printf("skipped: %s\n", why.c_str());
      return 0;
    }
  }
  if (!options.one_case.empty()) return run_one(kernels, options.one_case);
  if (!options.one_plan_case.empty()) return run_one(kPlans, options.one_plan_case);
  if (options.only_shows) {
    for (int64_t i = 0; i < options.cases; ++i) {
      std::puts(to_text(kernels.draw(options.seed + uint64_t(i))).c_str());
    }
    return 0;
  }
  const auto start = std::chrono::steady_clock::now();
  LedgerLine line;
  line.first_seed = options.seed;
  // A drawn plan is compared in every tile shape of the list.
  const int64_t tiles = int64_t(plan_tiles().size());
  bool is_sound =
      options.plans == 0 || run(kPlans, options, (scaled(options.plans) + tiles - 1) / tiles, line);
  is_sound = (options.cases == 0 || run(kernels, options, scaled(options.cases), line)) && is_sound;
  line.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%s\n", to_text(line).c_str());
  if (!options.ledger.empty()) append_to_ledger(options.ledger, line);
  return is_sound ? 0 : 1;
}

}  // namespace
}  // namespace keyhole::fuzz

int main(int argc, char** argv) {
  try {
    return keyhole::fuzz::main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 2;
  }
}
