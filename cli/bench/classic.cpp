// cli/bench/classic.cpp
// The project's two classic tables: streaming and block-diagonal attention against dense, at
// lengths that double. Sparse and dense are timed in turns, and dense is the like one: causal for
// causal.
#include <fmt/format.h>

#include "base/check.h"
#include "cli/bench/session.h"

namespace keyhole::bench {
namespace {

// On a GPU lengths go on to where sparse attention is used; dense attention still takes no minutes.
Range classic_range(const Session& session) {
  return Range(session, {128, session.is_on_gpu() ? 131072 : 4096}, 1);
}

void run_table(Session& session, const std::string& suite, const std::string& title,
               const std::string& length_name, const std::string& sparse_name, const Range& range,
               const Pattern& pattern, const Pattern& dense_pattern) {
  cli::Table table({length_name, "dense ms", sparse_name + " ms", "speed-up"}, "rrrr");
  const auto lengths = doubling(range.lengths);
  {
    cli::Progress progress("bench " + suite, int64_t(lengths.size()));
    std::shared_ptr<Inputs> inputs;
    for (const int64_t length : lengths) {
      progress.step(fmt::format("{}, {} tokens", pattern.text(), length));
      const Case c =
          range.at(session, fmt::format("{}-{}x{}-{}", suite, range.heads, range.head_dim, length),
                   pattern, pattern.text(), length);
      const auto baseline =
          session.prepare(with_pattern(c, dense_pattern, dense_pattern.text()), inputs);
      const auto subject = session.prepare(c, inputs);
      if (!baseline || !subject) {
        table.add({fmt::format("{}", length), "check failed", "", ""}, cli::Ink::red);
        continue;
      }
      const auto timings =
          time_in_turns({baseline->call(), subject->call()}, session.effort().timing);
      nlohmann::json record = to_json(*subject, timings[1]);
      add_dense(record, dense_twin_of(*baseline, timings[0]));
      table.add({fmt::format("{}", length), ms_text(timings[0].median_ms),
                 ms_text(timings[1].median_ms), speedup_text(record["speedup"])});
      session.keep(suite, std::move(record));
    }
  }
  session.print("\n" + title + "\n");
  session.print(table);
}

}  // namespace

void bench_streaming(Session& session) {
  Range range = classic_range(session);
  const Options& options = session.options();
  const int64_t channels = positive(options.channels, "--channels");
  const Pattern pattern = streaming(options.sinks, positive(options.window, "--window"));
  KEYHOLE_CHECK(channels % range.head_dim == 0, "bench streaming: --channels is ", channels,
                ", --head-dim is ", range.head_dim, "; channels must be a multiple of head_dim");
  const int64_t many = channels / range.head_dim;
  for (const int64_t heads : {many, int64_t{1}}) {
    range.heads = heads;
    range.head_dim = channels / heads;
    run_table(session, "streaming",
              fmt::format("{}, {} channels as {}, {}, against dense causal", pattern.text(),
                          channels, range.heads_text(), session.conditions(range.dtype)),
              "T", "streaming", range, pattern, causal());
    if (many == 1) break;
  }
}

void bench_blocks(Session& session) {
  const Range range = classic_range(session);
  const Pattern of_blocks = blocks(positive(session.options().block, "--block"));
  for (const bool is_causal_table : {false, true}) {
    const Pattern pattern = is_causal_table ? causal() & of_blocks : of_blocks;
    run_table(
        session, is_causal_table ? "blocks-causal" : "blocks",
        fmt::format("{}, {}, {}, against {}", pattern.text(), range.heads_text(),
                    session.conditions(range.dtype), is_causal_table ? "dense causal" : "dense"),
        "L", "sparse", range, pattern, is_causal_table ? causal() : dense());
  }
}

}  // namespace keyhole::bench
