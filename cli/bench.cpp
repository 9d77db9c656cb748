// cli/bench.cpp
// keyhole bench TABLE: checks, then times; tables on stdout, records with --json. Which tables
// there are, and what each offers; how it is measured is in cli/bench/.
#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>

#include "base/check.h"
#include "cli/bench/session.h"
#include "cli/command_line.h"
#include "cli/files.h"

namespace keyhole::cli {
namespace {

using namespace keyhole::bench;

// ---- the options each table offers ----

void offer_shape(CLI::App& app, bench::Options& options) {
  add(app,
      {{"--heads INT", &options.heads, "query heads"},
       {"--head-dim INT", &options.head_dim, "channels of a head"},
       {"--dtype TEXT", &options.dtype, "f16, bf16, f32 or f64; default: f32, on a GPU bf16"}});
}
void offer_range(CLI::App& app, bench::Options& options) {
  add(app, {{"--len TEXT", &options.len, "tokens: 4096, or 128:4096 for all lengths that double"}});
  offer_shape(app, options);
}
void offer_training(CLI::App& app, bench::Options& options) {
  add(app, {{"--training", &options.is_training, "time forward and backward together"}});
}
void offer_break_even(CLI::App& app, bench::Options& options) {
  offer_range(app, options);
  offer_training(app, options);
}

void offer_forward(CLI::App& app, bench::Options& options) {
  add(app, {{"--case TEXT", &options.case_names,
             "only these cases: comma-separated names, * matches any text"},
            {"--cases FILE", &options.case_file, "a file of cases; default: the built-in ones"},
            {"--pattern TEXT", &options.pattern, "this pattern instead of cases"}});
  for (const char* other : {"--case", "--cases"}) {
    app.get_option("--pattern")->excludes(app.get_option(other));
  }
  offer_range(app, options);
  add(app, {{"--kv-heads INT", &options.kv_heads, "key and value heads"}});
  options.normalizer.add_to(app);
  add(app, {{"--backend TEXT", &options.backend, "auto, cpu, simple, sm80 or sm90"},
            {"--indices TEXT", &options.indices,
             "int32 or int64: give plans of key lists as index tensors"},
            {"--profile", &options.is_profiled,
             "on a GPU: one call a case between the marks of a profiler, not timed"}});
  app.get_option("--indices")->check(CLI::IsMember({"int32", "int64"}));
}
void offer_backward(CLI::App& app, bench::Options& options) {
  offer_forward(app, options);
  add(app, {{"--deterministic", &options.is_deterministic, "the same bits every time"}});
}
void offer_streaming(CLI::App& app, bench::Options& options) {
  offer_break_even(app, options);
  app.remove_option(app.get_option("--heads"));  // --channels and --head-dim tell
  add(app,
      {{"--window INT", &options.window, "tokens a query sees, itself included"},
       {"--sinks INT", &options.sinks, "the number of first tokens that every query attends to"},
       {"--channels INT", &options.channels, "of all heads together"}});
}
void offer_blocks(CLI::App& app, bench::Options& options) {
  offer_break_even(app, options);
  add(app, {{"--block INT", &options.block, "tokens of a block"}});
}
void offer_sweep(CLI::App& app, bench::Options& options) {
  add(app, {{"--max-len INT", &options.max_len, "the longest sequence"}});
  offer_shape(app, options);
  offer_training(app, options);
}
void offer_splash(CLI::App& app, bench::Options& options) {
  add(app, {{"--pattern PATTERN", &options.pattern, "what attends to what; default: causal"}});
  options.normalizer.add_to(app, /*otherwise=*/1.5);
  offer_range(app, options);
  app.get_option("--len")->description(
      "tokens: 4096, or 512:8192 for all lengths that double; default: 512:4096, with --quick to "
      "2048, on a GPU to 32768");
  app.get_option("--heads")->description("query heads; default: 4, on a GPU 16");
  app.get_option("--head-dim")->description("channels of a head; default: 64");
}
void offer_select(CLI::App& app, bench::Options& options) {
  add(app,
      {{"--queries INT", &options.queries, "queries that choose; default: 256, on a GPU 4096"},
       {"--entries INT", &options.entries, "what they choose from; default: 8192, on a GPU 131072"},
       {"--top-k INT", &options.best, "how many each of them chooses; default: 512, on a GPU 2048"},
       {"--pattern TEXT", &options.pattern, "what is visible; default: everything"},
       {"--heads INT", &options.heads, "index heads; default: 16, on a GPU 64"},
       {"--head-dim INT", &options.head_dim,
        "channels of an index head; default: 64, on a GPU 128"},
       {"--q-heads INT", &options.q_heads,
        "heads of the attention over the chosen keys, in latent form, and of the dense one "
        "beside it; 0: none; default: 16, on a GPU 128"},
       {"--dtype TEXT", &options.index_dtype,
        "e4m3, f16, bf16 or f32; default: f32, on a GPU e4m3"},
       {"--backend TEXT", &options.backend, "auto, cpu, simple, sm80 or sm90"}});
}
void offer_nothing(CLI::App&, bench::Options&) {}

void bench_all(Session& session) {
  for (const auto bench :
       {bench_forward, bench_backward, bench_streaming, bench_blocks, bench_sweep_and_compare,
        bench_break_even, bench_memory, bench_splash, bench_select}) {
    bench(session);
  }
}

struct BenchTable {
  const char* name;
  const char* summary;
  void (*offer)(CLI::App& app, bench::Options& options);
  void (*run)(Session& session);
};
constexpr BenchTable kTables[] = {
    {"forward", "cases of bench/cases/ (cpu.txt or gpu.txt), or one pattern", offer_forward,
     bench_forward},
    {"backward", "the same for the backward pass", offer_backward, bench_backward},
    {"streaming", "sinks and a window against dense causal, lengths that double", offer_streaming,
     bench_streaming},
    {"blocks", "block-diagonal against dense, with and without causal", offer_blocks, bench_blocks},
    {"sweep", "all patterns at growing lengths, with sparsity and speed-up", offer_sweep,
     bench_sweep},
    {"compare", "all patterns: pairs, global context, how their time grows", offer_sweep,
     bench_compare},
    {"break-even", "the shortest length at which each pattern beats dense", offer_break_even,
     bench_break_even},
    {"memory", "what a call needs besides its tensors", offer_range, bench_memory},
    {"splash", "entmax and top-K beside softmax: time, pairs that keep weight, memory",
     offer_splash, bench_splash},
    {"select", "key selection, its steps, and attention over the chosen keys", offer_select,
     bench_select},
    {"all", "everything above", offer_nothing, bench_all},
    {"planning", "what compiling a plan takes, against bars; exit code 1 when one is missed",
     offer_nothing, bench_planning},
};

// For the records: what to type to take them again. The file they went to does not matter.
std::string typed_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command = "keyhole", word;
  std::getline(file, word, '\0');
  while (std::getline(file, word, '\0')) {
    if (word == "--json") {
      std::getline(file, word, '\0');
    } else if (!word.starts_with("--json=")) {
      command +=
          word.find_first_of(" ()&|~*") == std::string::npos ? " " + word : " \"" + word + "\"";
    }
  }
  return command;
}

int bench_verb(const CLI::App& app, bench::Options options) {
  const auto chosen = app.get_subcommands();
  KEYHOLE_CHECK(!chosen.empty(),
                "bench: which table? `keyhole bench all --quick` makes them all in two ",
                "minutes; keyhole bench --help lists them");
  KEYHOLE_CHECK(options.threads >= 0, "bench: --threads is ", options.threads,
                "; 0 means all, else at least 1");
  KEYHOLE_CHECK(options.limit_s >= 0, "bench: --limit is ", options.limit_s,
                " s; it must not be negative");
  options.table = chosen.front()->get_name();
  options.command = typed_command();
  // A folder that cannot be written is refused before the work, not after it.
  if (!options.json_path.empty()) check_writable(options.json_path);
  if (is_stdout(options.json_path)) options.json_path = "-";
  const std::string& folder = options.record_folder;
  if (!folder.empty()) check_writable(record_stem(folder, options.table, "any") + ".md");
  KEYHOLE_CHECK(!options.is_cpu_time || options.threads <= 1,
                "bench: --cpu-time measures one thread; --threads is ", options.threads);
  if (options.is_cpu_time) options.threads = 1;
  options.device = options.device_option.settle(
      "bench", options.dtype.empty() ? std::nullopt : std::optional(dtype_from(options.dtype)));
  const bool is_on_gpu = is_gpu(options.device);
  KEYHOLE_CHECK(is_on_gpu || !options.is_cold,
                "bench: --cold overwrites the second-level cache of a GPU, and this run is on the "
                "CPU; leave it out");
  KEYHOLE_CHECK(is_on_gpu || !options.is_profiled,
                "bench: --profile sets the marks of a GPU's profiler, and this run is on the CPU; "
                "leave it out");
  KEYHOLE_CHECK(!is_on_gpu || !options.is_cpu_time,
                "bench: --cpu-time measures the processor, and this run is on a GPU; pass --device "
                "cpu with it");
  Session session(options);
  for (const BenchTable& table : kTables) {
    if (options.table == table.name) table.run(session);
  }
  return session.finish();
}

}  // namespace

Runner add_bench(CLI::App& app, Context&) {
  auto options = std::make_shared<bench::Options>();
  add(app, {{"--json FILE", &options->json_path,
             "write the records there, one JSON object a line; - for stdout, without tables"},
            {"--record FOLDER", &options->record_folder,
             "keep tables and records in this folder, under date and machine"},
            {"--quick", &options->is_quick, "fewer repeats and sampled checks"},
            {"--threads INT", &options->threads, "at most this many; all when not given"},
            {"--limit FLOAT", &options->limit_s,
             "seconds; a call expected to take longer is not made (20; 1.5 with --quick)"}});
  options->device_option.add_to(app, "a GPU when there is one");
  add(app,
      {{"--cold", &options->is_cold, "on a GPU: overwrite its second-level cache before each call"},
       {"--cpu-time", &options->is_cpu_time,
        "processor time of one thread, for a machine that others use too"}});
  for (const BenchTable& table : kTables) {
    CLI::App* command = app.add_subcommand(table.name, table.summary);
    command->fallthrough();  // --json and its like may follow the name of the table
    table.offer(*command, *options);
  }
  app.require_subcommand(0, 1);
  app.footer(
      "Every case is checked against the fp64 reference before it is timed.\n"
      "  keyhole bench all --quick --json records.json\n"
      "  keyhole bench streaming --len 128:4096 --window 64 --sinks 16\n"
      "  keyhole bench sweep --training --heads 8 --head-dim 128\n"
      "  keyhole bench forward --pattern \"causal & window(256)\" --len 8192 --heads 8\n"
      "  keyhole bench splash --alpha 1.5 --top-k 8 --len 512:8192 --heads 16\n"
      "  keyhole bench sweep --max-len 32768 --device cpu\n"
      "  keyhole bench forward --pattern causal --len 16384 --heads 16 --device gpu --cold");
  return [&app, options] { return bench_verb(app, *options); };
}

}  // namespace keyhole::cli
