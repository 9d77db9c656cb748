// cli/bench/classic.cpp
// The project's two classic tables: streaming and block-diagonal attention against dense, at
// lengths that double. Sparse and dense are timed in turns, and dense is the like one: causal for
// causal.
#include <fmt/format.h>

#include "base/check.h"
#include "cli/bench/tables.h"

namespace keyhole::bench {
namespace {

struct Race {
  double dense_ms, sparse_ms;
};

// Checks both, times both, keeps one record. Nothing when a check failed.
std::optional<Race> race(Session& session, const std::string& suite, const Case& sparse,
                         const Case& dense_one, std::shared_ptr<Inputs>& inputs) {
  const std::optional<Subject> baseline = session.prepare(dense_one, inputs);
  const std::optional<Subject> subject = session.prepare(sparse, inputs);
  if (!baseline || !subject) return std::nullopt;
  const auto timings = time_in_turns({baseline->call(), subject->call()}, session.effort().timing);
  const Race result{timings[0].median_ms, timings[1].median_ms};
  nlohmann::json record = to_json(*subject, timings[1]);
  add_dense(record, dense_twin_of(*baseline, timings[0]));
  session.keep(suite, std::move(record));
  return result;
}

void run_table(Session& session, const std::string& suite, const std::string& title,
               const std::string& length_name, const std::string& sparse_name, const Range& range,
               const Pattern& pattern, const Pattern& dense_pattern) {
  cli::Table table({length_name, "dense ms", sparse_name + " ms", "speed-up"}, "rrrr");
  const auto lengths = doubling(range.first_len, range.last_len);
  {
    cli::Progress progress("bench " + suite, int64_t(lengths.size()));
    std::shared_ptr<Inputs> inputs;
    for (const int64_t length : lengths) {
      progress.step(fmt::format("{}, {} tokens", pattern.text(), length));
      const Case c =
          range.at(session, fmt::format("{}-{}x{}-{}", suite, range.heads, range.head_dim, length),
                   pattern, pattern.text(), length);
      const auto result =
          race(session, suite, c, with_pattern(c, dense_pattern, dense_pattern.text()), inputs);
      if (!result) {
        table.add({fmt::format("{}", length), "check failed", "", ""}, cli::Ink::red);
        continue;
      }
      table.add({fmt::format("{}", length), ms_text(result->dense_ms), ms_text(result->sparse_ms),
                 speedup_text(result->dense_ms / result->sparse_ms)});
    }
  }
  session.print("\n" + title + "\n");
  session.print(table);
}

}  // namespace

void bench_streaming(Session& session, Range range, int64_t channels, int64_t sinks,
                     int64_t window) {
  KEYHOLE_CHECK(channels % range.head_dim == 0, "bench streaming: --channels is ", channels,
                ", --head-dim is ", range.head_dim, "; channels must be a multiple of head_dim");
  const Pattern pattern = streaming(sinks, window);
  const int64_t many = channels / range.head_dim;
  for (const int64_t heads : {many, int64_t{1}}) {
    range.heads = heads;
    range.head_dim = channels / heads;
    run_table(session, "streaming",
              fmt::format("{}, {} channels as {} head{} of {}, {}, against dense causal",
                          pattern.text(), channels, heads, heads == 1 ? "" : "s", range.head_dim,
                          session.conditions(range.dtype)),
              "T", "streaming", range, pattern, causal());
    if (many == 1) break;
  }
}

void bench_blocks(Session& session, const Range& range, int64_t block) {
  for (const bool is_causal_table : {false, true}) {
    const Pattern pattern = is_causal_table ? causal() & blocks(block) : blocks(block);
    run_table(
        session, is_causal_table ? "blocks-causal" : "blocks",
        fmt::format("{}, {} head{} of {}, {}, against {}", pattern.text(), range.heads,
                    range.heads == 1 ? "" : "s", range.head_dim, session.conditions(range.dtype),
                    is_causal_table ? "dense causal" : "dense"),
        "L", "sparse", range, pattern, is_causal_table ? causal() : dense());
  }
}

}  // namespace keyhole::bench
