// cli/bench/splash.cpp
// Entmax or top-K beside softmax of the same pattern, at lengths that double: the time of both
// passes, how many pairs keep weight, and the memory besides the tensors. Both normalizers are
// timed in turns. The forward pass writes the keys that have weight and the backward pass reads
// them, as in training.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/parallel.h"
#include "cli/bench/tables.h"
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

// One pass at one length, of both.
struct Pass {
  Timing softmax, sparse;
  std::optional<double> softmax_bytes, sparse_bytes;  // besides the tensors
  nlohmann::json record;

  double times() const { return sparse.median_ms / softmax.median_ms; }
};

class Splash {
 public:
  Splash(Session& session, const Range& range, const Pattern& pattern, const Normalizer& normalizer)
      : session_(session), range_(range), pattern_(pattern), normalizer_(normalizer) {}

  void run();

 private:
  Case case_at(int64_t length, Operation operation) const;
  std::optional<Pass> measure(int64_t length, Operation operation, std::optional<Kept>& kept);
  void add_row(int64_t length);
  void keep(Pass& pass, const Kept& kept);

  Session& session_;
  Range range_;
  Pattern pattern_;
  Normalizer normalizer_;
  double pairs_ = 0;  // of the pattern, at this length
  int64_t support_bytes_ = 0;
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

// Nothing where a check failed.
std::optional<Pass> Splash::measure(int64_t length, Operation operation,
                                    std::optional<Kept>& kept) {
  const Case plain = case_at(length, operation);
  Case sparse = plain;
  sparse.normalizer = normalizer_;
  Pass pass;
  {
    // A backward pass reads what its own forward pass left: tensors of their own.
    std::shared_ptr<Inputs> plain_inputs, sparse_inputs;
    const auto baseline = session_.prepare(plain, plain_inputs);
    const auto subject = session_.prepare(sparse, sparse_inputs);
    if (!baseline || !subject) return std::nullopt;
    const auto timings =
        time_in_turns({baseline->call(), subject->call()}, session_.effort().timing);
    pass.softmax = timings[0];
    pass.sparse = timings[1];
    if (!kept) {
      kept = count_kept(sparse, *sparse_inputs, *subject->support(), session_.threads());
    }
    pairs_ = double(subject->report().pairs);
    support_bytes_ = subject->support_bytes();
    pass.record = to_json(*subject, pass.sparse);
    pass.record["softmax_kernel"] = baseline->kernel();
    pass.record["workspace_bytes"] = subject->workspace_bytes();
    pass.record["softmax_workspace_bytes"] = baseline->workspace_bytes();
  }
  pass.softmax_bytes = extra_bytes(plain, session_.effort().options);
  pass.sparse_bytes = extra_bytes(sparse, session_.effort().options);
  return pass;
}

void Splash::keep(Pass& pass, const Kept& kept) {
  nlohmann::json& record = pass.record;
  const double rows = double(range_.heads) * record["q_len"].get<double>();
  record["softmax_ms"] = to_json(pass.softmax);
  record["times_softmax"] = pass.times();
  record["kept_pairs"] = kept.pairs;
  record["kept_per_row"] = kept.pairs / rows;
  record["kept_of_visible"] = pairs_ > 0 ? kept.pairs / pairs_ : 0;
  record["kept_is_sampled"] = kept.is_sampled;
  if (normalizer_.top_k > 0) record["rows_at_top_k"] = double(kept.full_rows) / rows;
  record["support_bytes"] = support_bytes_;
  if (pass.sparse_bytes) record["besides_tensors_bytes"] = *pass.sparse_bytes;
  if (pass.softmax_bytes) record["softmax_besides_tensors_bytes"] = *pass.softmax_bytes;
  session_.keep("splash", std::move(record));
}

void Splash::add_row(int64_t length) {
  const std::string tokens = cli::with_thousands(length);
  const auto add_other = [&](const std::string& what, cli::Ink ink) {
    table_.add({tokens, "", "", what, "", "", "", "", "", "", "", ""}, ink);
  };
  const double growth = last_len_ > 0 ? double(length) / double(last_len_) : 0;
  const double expected_s = 1e-3 * last_ms_ * growth * growth;
  if (expected_s > session_.options().limit_s) {
    return add_other(fmt::format("not run ({})", duration_text(expected_s)), cli::Ink::dim);
  }
  std::optional<Kept> kept;
  std::optional<Pass> forward, backward;
  try {
    forward = measure(length, Operation::forward, kept);
    if (forward) backward = measure(length, Operation::backward, kept);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::device) throw;
    session_.fail("not run", case_at(length, Operation::forward), error.what());
    return add_other("not run", cli::Ink::red);
  }
  if (!forward || !backward) return add_other("check failed", cli::Ink::red);
  last_ms_ = std::max({forward->softmax.median_ms, forward->sparse.median_ms,
                       backward->softmax.median_ms, backward->sparse.median_ms});
  last_len_ = length;
  is_any_sampled_ |= kept->is_sampled;
  const auto bytes = [](std::optional<double> one, std::optional<double> other) {
    return one && other ? cli::bytes_text(std::max(*one, *other)) : "-";
  };
  table_.add({tokens,
              fmt::format("{}{:.1f}", kept->is_sampled ? "~" : "",
                          kept->pairs / double(range_.heads * length)),
              fmt::format("{:.2f}%", pairs_ > 0 ? 100 * kept->pairs / pairs_ : 0),
              ms_text(forward->sparse.median_ms), ms_text(forward->softmax.median_ms),
              fmt::format("{:.2f}", forward->times()), ms_text(backward->sparse.median_ms),
              ms_text(backward->softmax.median_ms), fmt::format("{:.2f}", backward->times()),
              cli::bytes_text(double(support_bytes_)),
              bytes(forward->sparse_bytes, backward->sparse_bytes),
              bytes(forward->softmax_bytes, backward->softmax_bytes)});
  keep(*forward, *kept);
  keep(*backward, *kept);
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
      "\nsplash: {} beside softmax, {}, {} head{} of {}, {}; q and k are normal numbers. keys/row: "
      "keys that keep\nweight, the mean of all rows{}. x: time over that of softmax. support: "
      "those "
      "keys, kept for the backward\npass. besides: the most memory of a call besides tensors and "
      "support, plan included; beside it softmax's\n",
      to_string(normalizer_), pattern_.text(), range_.heads, range_.heads == 1 ? "" : "s",
      range_.head_dim, session_.conditions(range_.dtype),
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
