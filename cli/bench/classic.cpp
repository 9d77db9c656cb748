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
               const std::string& length_name, const std::string& sparse_name,
               const std::vector<int64_t>& lengths, Case c, const Pattern& dense_pattern) {
  cli::Table table({length_name, "dense ms", sparse_name + " ms", "speed-up"}, "rrrr");
  c = session.here(c);
  {
    cli::Progress progress("bench " + suite, int64_t(lengths.size()));
    std::shared_ptr<Inputs> inputs;
    for (const int64_t length : lengths) {
      progress.step(fmt::format("{}, {} tokens", c.pattern_text, length));
      c.q_len = c.k_len = length;
      c.name = fmt::format("{}-{}x{}-{}", suite, c.heads, c.head_dim, length);
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

void bench_streaming(Session& session, const StreamingOptions& options) {
  KEYHOLE_CHECK(options.channels % options.head_dim == 0, "bench streaming: --channels is ",
                options.channels, ", --head-dim is ", options.head_dim,
                "; channels must be a multiple of head_dim");
  const Pattern pattern = streaming(options.sinks, options.window);
  const auto lengths = doubling(options.first_len, options.last_len);
  const int64_t many = options.channels / options.head_dim;
  for (const int64_t heads : {many, int64_t{1}}) {
    Case c{.name = "", .pattern = pattern, .pattern_text = pattern.text()};
    c.heads = c.kv_heads = heads;
    c.head_dim = options.channels / heads;
    c.dtype = options.dtype;
    run_table(session, "streaming",
              fmt::format("{}, {} channels as {} head{} of {}, {}, against dense causal",
                          c.pattern_text, options.channels, heads, heads == 1 ? "" : "s",
                          c.head_dim, session.conditions(c.dtype)),
              "T", "streaming", lengths, c, causal());
    if (many == 1) break;
  }
}

void bench_blocks(Session& session, const BlocksOptions& options) {
  const auto lengths = doubling(options.first_len, options.last_len);
  for (const bool is_causal_table : {false, true}) {
    const Pattern pattern =
        is_causal_table ? causal() & blocks(options.block) : blocks(options.block);
    Case c{.name = "", .pattern = pattern, .pattern_text = pattern.text()};
    c.heads = c.kv_heads = options.heads;
    c.head_dim = options.head_dim;
    c.dtype = options.dtype;
    run_table(session, is_causal_table ? "blocks-causal" : "blocks",
              fmt::format("{}, {} head{} of {}, {}, against {}", c.pattern_text, c.heads,
                          c.heads == 1 ? "" : "s", c.head_dim, session.conditions(c.dtype),
                          is_causal_table ? "dense causal" : "dense"),
              "L", "sparse", lengths, c, is_causal_table ? causal() : dense());
  }
}

}  // namespace keyhole::bench
