// cli/bench/planning.cpp
// How long plans take to compile, by processor time, and how much memory that needs, for 128x128
// tiles, beside the bar that each has to clear.
#include <fmt/format.h>

#include "cli/bench/patterns.h"
#include "cli/bench/session.h"
#include "plan/plan_state.h"

namespace keyhole::bench {
namespace {

constexpr int64_t kMillion = 1048576;
constexpr TileShape kPlanTile = {128, 128};

struct PlanningCase {
  std::string text;
  int64_t length;
  Pattern pattern;
  double most_ms;
  double most_mb = 0;  // 0: no bar
};

std::vector<PlanningCase> planning_cases() {
  std::vector<PlanningCase> cases;
  for (const char* text : {"causal", "causal & window(4095)", "streaming(16, 64)"}) {
    cases.push_back({text, kMillion, parse(text), 10, 16});
  }
  const std::string bigbird = "bigbird(64, 3, 3, 2, 1)";
  cases.push_back({bigbird, 131072, parse(bigbird), 50});
  cases.push_back({"causal & documents(~1000, ...)", kMillion,
                   causal() & documents(document_lengths(kMillion, /*mean=*/1000)), 60});
  cases.push_back({"mask(4096 x 4096 random)", 4096, random_mask(4096, /*eighths=*/4), 100});
  return cases;
}

struct Measured {
  Timing timing;
  std::optional<double> peak_mb;  // nothing where the system does not tell
  int64_t runs = 0, bitmaps = 0;  // of the plan
};

// A plan is compiled anew in each run: nothing may be kept from the one before. The first run warms
// up; memory is watched there, since that gives the heap back and costs time.
Measured measure(const PlanningCase& c, int num_runs) {
  const Shape shape{.batch = 1, .heads = 1, .q_len = c.length, .k_len = c.length, .offset = {}};
  Measured result;
  std::vector<double> samples_ms;
  const auto needed = watch_memory({});
  for (int run = 0; run <= num_runs; ++run) {
    const double begin = now_s(/*is_cpu_time=*/true);
    const Plan made = plan(c.pattern, shape);
    const CompiledTiles& lists = made.state().tiles(kPlanTile);
    const double elapsed_ms = 1e3 * (now_s(/*is_cpu_time=*/true) - begin);
    if (run > 0) {
      samples_ms.push_back(elapsed_ms);
      continue;
    }
    if (needed) result.peak_mb = (*needed)() * 1e-6;
    for (const TileLists& part : lists.parts) {
      result.runs += int64_t(part.runs.size());
      result.bitmaps += part.num_bitmaps();
    }
  }
  result.timing = summarize(samples_ms);
  return result;
}

}  // namespace

void bench_planning(Session& session) {
  cli::Table table({"pattern", "tokens", "median ms", "p10 .. p90", "bar", "peak MB", "bar", "runs",
                    "bitmaps", "verdict"},
                   "lrrrrrrrrl");
  for (const PlanningCase& c : planning_cases()) {
    const Measured m = measure(c, session.options().is_quick ? 5 : 15);
    const bool is_small = c.most_mb == 0 || !m.peak_mb || *m.peak_mb < c.most_mb;
    const bool is_met = is_small && m.timing.median_ms < c.most_ms;
    if (!is_met) session.miss_bar();
    table.add(
        {c.text, cli::with_thousands(c.length), fmt::format("{:.2f}", m.timing.median_ms),
         fmt::format("{:.2f} .. {:.2f}", m.timing.p10_ms, m.timing.p90_ms),
         fmt::format("< {:.0f}", c.most_ms), m.peak_mb ? fmt::format("{:.2f}", *m.peak_mb) : "-",
         c.most_mb > 0 ? fmt::format("< {:.0f}", c.most_mb) : "-", cli::with_thousands(m.runs),
         cli::with_thousands(m.bitmaps), is_met ? "met" : "MISSED"},
        is_met ? cli::Ink::plain : cli::Ink::red);
    nlohmann::json record = {{"case", fmt::format("planning {} at {}", c.text, c.length)},
                             {"tile", to_string(kPlanTile)},
                             {"ms", to_json(m.timing)},
                             {"bar_ms", c.most_ms},
                             {"is_met", is_met},
                             {"clock", "cpu"}};
    if (m.peak_mb) record["peak_mb"] = *m.peak_mb;
    if (c.most_mb > 0) record["bar_mb"] = c.most_mb;
    session.keep("planning", std::move(record));
  }
  session.print(
      fmt::format("\nplanning: plans of {} tiles, processor time\n", to_string(kPlanTile)));
  session.print(table);
}

}  // namespace keyhole::bench
