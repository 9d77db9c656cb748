// cli/bench/splash.cpp
// Entmax or top-K beside softmax of the same pattern, at lengths that double: the time of both
// passes, how many pairs keep weight, and the memory besides the tensors. Both normalizers are
// timed in turns. The forward pass writes the keys that have weight and the backward pass reads
// them, as in training.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "cli/bench/session.h"
#include "reference/attention.h"

namespace keyhole::bench {
namespace {

struct Kept {
  double pairs = 0;         // that keep weight, over all heads
  int64_t full_rows = 0;    // rows that keep as many keys as top_k allows
  bool is_sampled = false;  // rows of more than kSupportKeys keys were counted on a sample
};

// By the definition, for a row that has more keys than fit its support.
int64_t count_kept_keys(const Case& c, const Inputs& inputs, int64_t head, int64_t row) {
  AttentionOptions options;
  options.normalizer = c.normalizer;
  const ReferenceRow all =
      reference_row(c.pattern, inputs.q.host(), inputs.k.host(), /*batch=*/0, head, row, options);
  return std::ranges::count_if(all.weights, [](double weight) { return weight > 0; });
}

// From the support that the last forward pass left.
Kept count_kept(const Case& c, const Inputs& inputs, SupportKeys& support, int threads) {
  constexpr int64_t kMostCounted = 512;  // long rows, of all heads
  const std::vector<int32_t>& keys = support.bring_back();
  Kept kept;
  std::vector<int64_t> long_rows;  // head * q_len + row
  for (int64_t i = 0; i < c.heads * c.q_len; ++i) {
    const auto begin = keys.begin() + i * kSupportKeys, end = begin + kSupportKeys;
    if (*begin == kLongSupport) {
      long_rows.push_back(i);
      continue;
    }
    const int64_t count = std::find(begin, end, -1) - begin;
    kept.pairs += double(count);
    kept.full_rows += count == c.normalizer.top_k;
  }
  const int64_t num_long = int64_t(long_rows.size()), counted = std::min(num_long, kMostCounted);
  if (counted == 0) return kept;
  std::vector<int64_t> counts(static_cast<size_t>(counted));
  parallel_for(counted, threads, [&](int64_t i, int) {
    const int64_t row = long_rows[size_t(i * num_long / counted)], head = row / c.q_len;
    counts[size_t(i)] = count_kept_keys(c, inputs, head, row % c.q_len);
  });
  const double share = double(num_long) / double(counted);
  for (const int64_t count : counts) {
    kept.pairs += share * double(count);
    kept.full_rows += count == c.normalizer.top_k ? int64_t(share) : 0;
  }
  kept.is_sampled = counted < num_long;
  return kept;
}

class Splash {
 public:
  Splash(Session& session, const Range& range, const Pattern& pattern, const Normalizer& normalizer)
      : session_(session), range_(range), pattern_(pattern), normalizer_(normalizer) {}

  void run();

 private:
  Case case_at(int64_t length, Operation operation) const;
  nlohmann::json measure(int64_t length, Operation operation, std::optional<Kept>& kept);
  void add_row(int64_t length);

  Session& session_;
  Range range_;
  Pattern pattern_;
  Normalizer normalizer_;
  bool is_any_sampled_ = false;
  double last_ms_ = 0;  // the slowest call at the length before
  int64_t last_len_ = 0;
  cli::Table table_{{"tokens", "keys/row", "of visible", "forward ms", "softmax", "x",
                     "backward ms", "softmax", "x", "support", "besides", "softmax"},
                    "rrrrrrrrrrrr"};
};

Case Splash::case_at(int64_t length, Operation operation) const {
  Case c = range_.at(session_, fmt::format("splash-{}-{}", to_string(operation), length), pattern_,
                     pattern_.text(), length);
  c.operation = operation;
  return c;
}

// The record of one pass of both; null where a check failed. The first pass counts what is kept.
nlohmann::json Splash::measure(int64_t length, Operation operation, std::optional<Kept>& kept) {
  const Case plain = case_at(length, operation);
  Case sparse = plain;
  sparse.normalizer = normalizer_;
  nlohmann::json record;
  {
    // A backward pass reads what its own forward pass left: tensors of their own.
    std::shared_ptr<Inputs> plain_inputs, sparse_inputs;
    const auto baseline = session_.prepare(plain, plain_inputs);
    const auto subject = session_.prepare(sparse, sparse_inputs);
    if (!baseline || !subject) return {};
    const auto timings =
        time_in_turns({baseline->call(), subject->call()}, session_.effort().timing);
    if (!kept) {
      kept = count_kept(sparse, *sparse_inputs, *subject->support(), session_.threads());
    }
    const double pairs = double(subject->report().pairs), rows = double(sparse.heads * length);
    record = to_json(*subject, timings[1]);
    record["softmax_ms"] = to_json(timings[0]);
    record["times_softmax"] = timings[1].median_ms / timings[0].median_ms;
    record["softmax_kernel"] = baseline->kernel();
    record["workspace_bytes"] = subject->workspace_bytes();
    record["softmax_workspace_bytes"] = baseline->workspace_bytes();
    record["support_bytes"] = subject->support_bytes();
    record["kept_pairs"] = kept->pairs;
    record["kept_per_row"] = kept->pairs / rows;
    record["kept_of_visible"] = pairs > 0 ? kept->pairs / pairs : 0;
    record["kept_is_sampled"] = kept->is_sampled;
    if (normalizer_.top_k > 0) record["rows_at_top_k"] = double(kept->full_rows) / rows;
  }
  const auto add_memory = [&](const char* field, const Case& c) {
    if (const auto bytes = extra_bytes(c, session_.effort().options)) record[field] = *bytes;
  };
  add_memory("softmax_besides_tensors_bytes", plain);
  add_memory("besides_tensors_bytes", sparse);
  return record;
}

void Splash::add_row(int64_t length) {
  std::vector<std::string> cells = {cli::with_thousands(length), "", ""};
  const auto add_other = [&](const std::string& what, cli::Ink ink) {
    cells.push_back(what);
    table_.add(cells, ink);
  };
  const double growth = last_len_ > 0 ? double(length) / double(last_len_) : 0;
  const double expected_s = 1e-3 * last_ms_ * growth * growth;
  if (expected_s > session_.options().limit_s) {
    return add_other(fmt::format("not run ({})", duration_text(expected_s)), cli::Ink::dim);
  }
  std::optional<Kept> kept;
  std::vector<nlohmann::json> passes;
  try {
    for (const Operation operation : {Operation::forward, Operation::backward}) {
      passes.push_back(measure(length, operation, kept));
      if (passes.back().is_null()) return add_other("check failed", cli::Ink::red);
    }
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::device) throw;
    session_.fail("not run", case_at(length, Operation::forward), error.what());
    return add_other("not run", cli::Ink::red);
  }
  last_ms_ = 0, last_len_ = length;
  is_any_sampled_ |= kept->is_sampled;
  cells[1] =
      fmt::format("{}{:.1f}", kept->is_sampled ? "~" : "", passes[0]["kept_per_row"].get<double>());
  cells[2] = fmt::format("{:.2f}%", 100 * passes[0]["kept_of_visible"].get<double>());
  for (const nlohmann::json& pass : passes) {
    const double ms = pass["ms"]["median"], softmax_ms = pass["softmax_ms"]["median"];
    last_ms_ = std::max({last_ms_, ms, softmax_ms});
    cells.insert(cells.end(),
                 {ms_text(ms), ms_text(softmax_ms), fmt::format("{:.2f}", ms / softmax_ms)});
  }
  cells.push_back(cli::bytes_text(passes[0]["support_bytes"].get<double>()));
  for (const char* field : {"besides_tensors_bytes", "softmax_besides_tensors_bytes"}) {
    const bool is_known = passes[0].contains(field) && passes[1].contains(field);
    cells.push_back(is_known ? cli::bytes_text(std::max(passes[0][field].get<double>(),
                                                        passes[1][field].get<double>()))
                             : "-");
  }
  table_.add(cells);
  for (nlohmann::json& pass : passes) session_.keep("splash", std::move(pass));
}

void Splash::run() {
  {
    const auto lengths = doubling(range_.lengths);
    cli::Progress progress("bench splash", int64_t(lengths.size()));
    for (const int64_t length : lengths) {
      progress.step(fmt::format("{}, {} tokens", to_string(normalizer_), length));
      add_row(length);
    }
  }
  session_.print(fmt::format(
      "\nsplash: {} beside softmax, {}, {}, {}; q and k are normal numbers. keys/row: "
      "keys that keep\nweight, the mean of all rows{}. x: time over that of softmax. support: "
      "those keys, kept for the backward\npass. besides: the most memory of a call besides tensors "
      "and "
      "support, plan included; beside it softmax's\n",
      to_string(normalizer_), pattern_.text(), range_.heads_text(),
      session_.conditions(range_.dtype),
      is_any_sampled_ ? fmt::format(" (~: rows of more than {} on a sample)", kSupportKeys) : ""));
  session_.print(table_);
}

}  // namespace

// The layer SplashAttention is causal, with alpha 1.5.
void bench_splash(Session& session) {
  constexpr int64_t kLast = 32768, kLastOnCpu = 4096, kLastQuick = 2048;
  const Options& options = session.options();
  const Normalizer normalizer = options.normalizer.settle("bench", /*otherwise=*/1.5);
  KEYHOLE_CHECK(
      !normalizer.is_plain_softmax(),
      "bench: --alpha 1 without --top-k is softmax, which splash is held against; pass an "
      "alpha above 1, a --top-k, or both");
  const int64_t last = session.is_on_gpu() ? kLast : options.is_quick ? kLastQuick : kLastOnCpu;
  Splash(session, Range(session, {512, last}, session.is_on_gpu() ? 16 : 4),
         options.pattern.empty() ? causal() : cli::pattern_from("bench", options.pattern),
         normalizer)
      .run();
  if (options.len.empty() && last < kLast) {
    const double times = double(kLast) / double(last);
    session.print(fmt::format(
        "lengths end at {} on the CPU{}: at {} a dense pattern takes {:.0f} times as long; --len "
        "512:{} goes on\n",
        cli::with_thousands(last), options.is_quick ? " with --quick" : "",
        cli::with_thousands(kLast), times * times, kLast));
  }
}

}  // namespace keyhole::bench
