// cli/bench/case_table.cpp
// Takes cases, gives the table of times, useful work and share of peak.
#include <fmt/format.h>

#include "cli/bench/tables.h"

namespace keyhole::bench {

void bench_cases(Session& session, const std::string& suite, const std::vector<Case>& cases) {
  cli::Table table(
      {"case", "kernel", "check", "median ms", "p10 .. p90", "useful GFLOP/s", "of peak"},
      "lllrrrr");
  const double peak = session.peak_gflops();
  {
    cli::Progress progress("bench " + suite, int64_t(cases.size()));
    std::shared_ptr<Inputs> inputs;
    for (const Case& c : cases) {
      progress.step(c.name);
      const std::optional<Subject> subject = session.prepare(c, inputs);
      if (!subject) {
        table.add({c.name, "", "FAILED", "", "", "", ""}, cli::Ink::red);
        continue;
      }
      const Timing timing = time_call(subject->call(), session.effort().timing);
      nlohmann::json record = to_json(*subject, timing);
      const double gflops = record["gflops"];
      record["peak_gflops"] = peak;
      record["of_peak"] = gflops / peak;
      session.keep(suite, std::move(record));
      const CheckResult& result = subject->check_result();
      table.add({c.name, subject->kernel(),
                 result.is_sampled ? fmt::format("ok, {} rows", result.rows) : "ok",
                 ms_text(timing.median_ms),
                 fmt::format("{} .. {}", ms_text(timing.p10_ms), ms_text(timing.p90_ms)),
                 fmt::format("{:.1f}", gflops), cli::percent(gflops / peak)});
    }
  }
  session.print(fmt::format("\n{}: {} threads, FMA peak {:.0f} GFLOP/s measured in this run\n",
                            suite, session.threads(), peak));
  session.print(table);
}

}  // namespace keyhole::bench
