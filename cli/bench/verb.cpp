// cli/bench/verb.cpp
// Takes the options as typed, checks them, and calls the table that was asked for.
#include "cli/bench/verb.h"

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "cli/bench/cases.h"
#include "cli/bench/tables.h"

namespace keyhole::bench {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;

struct Lengths {
  int64_t first, last;
};

// "128:4096", or one length.
Lengths lengths_from(const std::string& text, Lengths otherwise) {
  if (text.empty()) return otherwise;
  const size_t colon = text.find(':');
  const int64_t first = cli::integer_from(text.substr(0, colon)).value_or(0);
  const int64_t last =
      colon == std::string::npos ? first : cli::integer_from(text.substr(colon + 1)).value_or(0);
  KEYHOLE_CHECK(first >= 1 && first <= last && last <= kMostTokens, "bench: --len \"", text,
                "\" is not a length; write 4096, or 128:4096 for all lengths ",
                "between that double, up to ", kMostTokens);
  return {first, last};
}

int64_t positive(std::optional<int64_t> given, const char* option, int64_t otherwise) {
  const int64_t value = given.value_or(otherwise);
  KEYHOLE_CHECK(value >= 1, "bench: ", option, " is ", value, "; it must be at least 1");
  return value;
}

DType dtype_of(const Session& session, const Options& options) {
  if (!options.dtype.empty()) return cli::dtype_from(options.dtype);
  return cli::is_gpu(session.device()) ? DType::bf16 : DType::f32;
}

// The range that the options ask for; `lengths` and `heads` where they do not say.
Range range_of(const Session& session, const Options& options, Lengths lengths, int64_t heads) {
  lengths = lengths_from(options.len, lengths);
  return {.first_len = lengths.first,
          .last_len = lengths.last,
          .heads = positive(options.heads, "--heads", heads),
          .head_dim = positive(options.head_dim, "--head-dim", 64),
          .dtype = dtype_of(session, options)};
}

// On a GPU lengths go on to where sparse attention is used; dense attention still takes no minutes.
Range classic_range(const Session& session, const Options& options) {
  return range_of(session, options, {128, cli::is_gpu(session.device()) ? 131072 : 4096}, 1);
}

// ---- from options to tables ----

std::vector<Case> chosen_cases(const Session& session, const Options& options,
                               Operation operation) {
  const Normalizer normalizer = options.normalizer.settle("bench");
  if (!options.pattern.empty()) {
    KEYHOLE_CHECK(!options.len.empty(), "bench: --pattern needs --len, such as --len 4096");
    Case c{.name = "given",
           .pattern = cli::pattern_from("bench", options.pattern),
           .pattern_text = ""};
    c.pattern_text = c.pattern.text();
    c.heads = positive(options.heads, "--heads", 4);
    c.kv_heads = positive(options.kv_heads, "--kv-heads", c.heads);
    KEYHOLE_CHECK(c.heads % c.kv_heads == 0, "bench: --heads ", c.heads,
                  " is not a multiple of --kv-heads ", c.kv_heads);
    c.head_dim = positive(options.head_dim, "--head-dim", 128);
    c.dtype = dtype_of(session, options);
    c.operation = operation;
    c.device = session.device();
    c.normalizer = normalizer;
    const Lengths lengths = lengths_from(options.len, {});
    std::vector<Case> cases;
    for (const int64_t length : doubling(lengths.first, lengths.last)) {
      c.name = fmt::format("given-{}", length);
      c.q_len = c.k_len = length;
      cases.push_back(c);
    }
    return cases;
  }
  std::vector<Case> cases = options.case_file.empty()
                                ? built_in_cases(operation, session.device(), options.case_names)
                                : cases_from_file(options.case_file, operation, options.case_names);
  for (Case& c : cases) c.device = session.device(), c.normalizer = normalizer;
  return cases;
}

// With --quick, the longest of the cases are left out: their check, and backward a call, takes
// seconds.
void run_cases(Session& session, const Options& options, Operation operation) {
  const int64_t longest_quick = operation == Operation::forward ? 65536 : 32768;
  std::vector<Case> cases = chosen_cases(session, options, operation);
  std::string left_out;
  if (session.options().is_quick && options.pattern.empty() && options.case_names.empty()) {
    std::erase_if(cases, [&](const Case& c) {
      if (c.q_len <= longest_quick) return false;
      left_out += (left_out.empty() ? "" : ", ") + c.name;
      return true;
    });
  }
  bench_cases(session, to_string(operation), cases);
  if (!left_out.empty()) session.print("left out with --quick: " + left_out + "\n");
}

void run_forward(Session& session, const Options& options) {
  run_cases(session, options, Operation::forward);
}

void run_backward(Session& session, const Options& options) {
  run_cases(session, options, Operation::backward);
}

void run_streaming(Session& session, const Options& options) {
  bench_streaming(session, classic_range(session, options),
                  positive(options.channels, "--channels", 1), options.sinks,
                  positive(options.window, "--window", 1));
}

void run_blocks(Session& session, const Options& options) {
  bench_blocks(session, classic_range(session, options), positive(options.block, "--block", 1));
}

std::vector<SweepPoint> sweep(Session& session, const Options& options, bool prints_table) {
  const bool is_quick = session.options().is_quick;
  const int64_t last = positive(options.max_len, "--max-len", 1);
  const Lengths lengths{std::min<int64_t>(is_quick ? 2048 : 1024, last), last};
  return bench_sweep(session, range_of(session, options, lengths, 2), is_quick ? 4 : 2,
                     prints_table);
}

void run_sweep(Session& session, const Options& options) { sweep(session, options, true); }

void run_compare(Session& session, const Options& options) {
  bench_compare(session, sweep(session, options, false));
}

void run_break_even(Session& session, const Options& options) {
  // A GPU has work for a hundred thousand threads before length matters.
  const bool is_on_gpu = cli::is_gpu(session.device()), is_quick = session.options().is_quick;
  const int64_t last = is_on_gpu ? (is_quick ? 16384 : 131072) : (is_quick ? 1024 : 4096);
  bench_break_even(session, range_of(session, options, {16, last}, 2));
}

void run_memory(Session& session, const Options& options) {
  bench_memory(session, range_of(session, options, {4096, 16384}, 2));
}

// The layer SplashAttention is causal, with alpha 1.5.
void run_splash(Session& session, const Options& options) {
  constexpr int64_t kLast = 32768, kLastOnCpu = 4096, kLastQuick = 2048;
  const bool is_on_gpu = cli::is_gpu(session.device()), is_quick = session.options().is_quick;
  const Normalizer normalizer = options.normalizer.settle("bench", /*otherwise=*/1.5);
  KEYHOLE_CHECK(
      !normalizer.is_plain_softmax(),
      "bench: --alpha 1 without --top-k is softmax, which splash is held against; pass an "
      "alpha above 1, a --top-k, or both");
  const int64_t last = is_on_gpu ? kLast : is_quick ? kLastQuick : kLastOnCpu;
  bench_splash(session, range_of(session, options, {512, last}, is_on_gpu ? 16 : 4),
               options.pattern.empty() ? causal() : cli::pattern_from("bench", options.pattern),
               normalizer);
  if (options.len.empty() && last < kLast) {
    const double times = double(kLast) / double(last);
    session.print(fmt::format(
        "lengths end at {} on the CPU{}: at {} a dense pattern takes {:.0f} times as long; --len "
        "512:{} goes on\n",
        cli::with_thousands(last), is_quick ? " with --quick" : "", cli::with_thousands(kLast),
        times * times, kLast));
  }
}

// On a GPU what DeepSeek's models choose.
void run_select(Session& session, const Options& options) {
  const bool is_on_gpu = cli::is_gpu(session.device());
  const auto size = [&](const std::optional<int64_t>& given, const char* option, int64_t on_gpu,
                        int64_t on_cpu) {
    return positive(given, option, is_on_gpu ? on_gpu : on_cpu);
  };
  SelectRange range{.queries = size(options.queries, "--queries", 4096, 256),
                    .entries = size(options.entries, "--entries", 131072, 8192),
                    .heads = size(options.heads, "--heads", 64, 16),
                    .head_dim = size(options.head_dim, "--head-dim", 128, 64),
                    .k = size(options.best, "--top-k", 2048, 512),
                    .q_heads = options.q_heads.value_or(is_on_gpu ? 128 : 16),
                    .dtype = is_on_gpu ? DType::e4m3 : DType::f32};
  if (!options.index_dtype.empty()) {
    range.dtype = cli::index_dtype_from(options.index_dtype);
    KEYHOLE_CHECK(range.dtype != DType::f64,
                  "bench: --dtype is f64; accepted are e4m3, f16, bf16 and f32");
  }
  KEYHOLE_CHECK(range.q_heads >= 0, "bench: --q-heads is ", range.q_heads,
                "; accepted are 1 and more, or 0 to time the selection alone");
  KEYHOLE_CHECK(
      range.q_heads == 0 || range.queries <= range.entries, "bench: --queries ", range.queries,
      " exceeds --entries ", range.entries,
      "; the attention over the chosen keys is causal, at the end of the text: pass fewer "
      "queries, or --q-heads 0");
  if (!options.pattern.empty()) range.visible = cli::pattern_from("bench", options.pattern);
  bench_select(session, range);
}

void run_planning(Session& session, const Options&) { bench_planning(session); }

// The comparison is drawn from the sweep: nothing is measured twice.
void run_all(Session& session, const Options& options) {
  run_forward(session, options);
  run_backward(session, options);
  run_streaming(session, options);
  run_blocks(session, options);
  bench_compare(session, sweep(session, options, true));
  run_break_even(session, options);
  run_memory(session, options);
  run_splash(session, options);
  run_select(session, options);
}

// ---- the options each table offers ----

void offer_shape(CLI::App& app, Options& options) {
  app.add_option("--heads", options.heads, "query heads");
  app.add_option("--head-dim", options.head_dim, "channels of a head");
  app.add_option("--dtype", options.dtype, "f16, bf16, f32 or f64; default: f32, on a GPU bf16");
}
void offer_range(CLI::App& app, Options& options) {
  app.add_option("--len", options.len, "tokens: 4096, or 128:4096 for all lengths that double");
  offer_shape(app, options);
}
void offer_training(CLI::App& app, Options& options) {
  app.add_flag("--training", options.session.is_training, "time forward and backward together");
}
void offer_break_even(CLI::App& app, Options& options) {
  offer_range(app, options);
  offer_training(app, options);
}

void offer_cases(CLI::App& app, Options& options) {
  auto* name = app.add_option("--case", options.case_names,
                              "only these cases: comma-separated names, * matches any text");
  auto* file =
      app.add_option("--cases", options.case_file, "a file of cases; default: the built-in ones")
          ->type_name("FILE");
  auto* text = app.add_option("--pattern", options.pattern, "this pattern instead of cases");
  text->excludes(name)->excludes(file);
  offer_range(app, options);
  app.add_option("--kv-heads", options.kv_heads, "key and value heads");
  options.normalizer.add_to(app);
  app.add_option("--backend", options.session.backend, "auto, cpu, simple, sm80 or sm90");
  app.add_option("--indices", options.session.indices,
                 "int32 or int64: give plans of key lists as index tensors")
      ->check(CLI::IsMember({"int32", "int64"}));
  app.add_flag("--profile", options.session.is_profiled,
               "on a GPU: one call a case between the marks of a profiler, not timed");
}
void offer_backward(CLI::App& app, Options& options) {
  offer_cases(app, options);
  app.add_flag("--deterministic", options.session.is_deterministic, "the same bits every time");
}
void offer_streaming(CLI::App& app, Options& options) {
  offer_break_even(app, options);
  app.remove_option(app.get_option("--heads"));  // --channels and --head-dim tell
  app.add_option("--window", options.window, "tokens a query sees, itself included");
  app.add_option("--sinks", options.sinks,
                 "the number of first tokens that every query attends to");
  app.add_option("--channels", options.channels, "of all heads together");
}
void offer_blocks(CLI::App& app, Options& options) {
  offer_break_even(app, options);
  app.add_option("--block", options.block, "tokens of a block");
}
void offer_sweep(CLI::App& app, Options& options) {
  app.add_option("--max-len", options.max_len, "the longest sequence");
  offer_shape(app, options);
  offer_training(app, options);
}
void offer_splash(CLI::App& app, Options& options) {
  app.add_option("--pattern", options.pattern, "what attends to what; default: causal")
      ->type_name("PATTERN");
  options.normalizer.add_to(app, /*otherwise=*/1.5);
  offer_range(app, options);
}
void offer_select(CLI::App& app, Options& options) {
  app.add_option("--queries", options.queries, "queries that choose");
  app.add_option("--entries", options.entries, "what they choose from");
  app.add_option("--top-k", options.best, "how many each of them chooses");
  app.add_option("--pattern", options.pattern, "what is visible; default: everything");
  app.add_option("--heads", options.heads, "index heads");
  app.add_option("--head-dim", options.head_dim, "channels of an index head");
  app.add_option(
      "--q-heads", options.q_heads,
      "heads of the attention over the chosen keys, in latent form, and of the dense one "
      "beside it; 0: none");
  app.add_option("--dtype", options.index_dtype,
                 "e4m3, f16, bf16 or f32; default: f32, on a GPU e4m3");
  app.add_option("--backend", options.session.backend, "auto, cpu, simple, sm80 or sm90");
}
void offer_nothing(CLI::App&, Options&) {}

constexpr BenchTable kTables[] = {
    {"forward", "cases of bench/cases/ (cpu.txt or gpu.txt), or one pattern", offer_cases,
     run_forward},
    {"backward", "the same for the backward pass", offer_backward, run_backward},
    {"streaming", "sinks and a window against dense causal, lengths that double", offer_streaming,
     run_streaming},
    {"blocks", "block-diagonal against dense, with and without causal", offer_blocks, run_blocks},
    {"sweep", "all patterns at growing lengths, with sparsity and speed-up", offer_sweep,
     run_sweep},
    {"compare", "all patterns: pairs, global context, how their time grows", offer_sweep,
     run_compare},
    {"break-even", "the shortest length at which each pattern beats dense", offer_break_even,
     run_break_even},
    {"memory", "what a call needs besides its tensors", offer_range, run_memory},
    {"splash", "entmax and top-K beside softmax: time, pairs that keep weight, memory",
     offer_splash, run_splash},
    {"select", "key selection, its steps, and attention over the chosen keys", offer_select,
     run_select},
    {"all", "everything above", offer_nothing, run_all},
    {"planning", "what compiling a plan takes, against bars; exit code 1 when one is missed",
     offer_nothing, run_planning},
};

}  // namespace

std::span<const BenchTable> bench_tables() { return kTables; }

}  // namespace keyhole::bench
