// cli/bench.cpp
// keyhole bench TABLE: checks, then times; tables on stdout, records with --json. What each table
// offers is in cli/bench/verb.cpp, how it is measured in the files beside it.
#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>

#include "base/check.h"
#include "cli/bench/verb.h"
#include "cli/files.h"
#include "cli/verbs.h"

namespace keyhole::cli {
namespace {

using namespace keyhole::bench;

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

int run(const CLI::App& app, Options& options) {
  const auto chosen = app.get_subcommands();
  KEYHOLE_CHECK(!chosen.empty(),
                "bench: which table? `keyhole bench all --quick` makes them all in two ",
                "minutes; keyhole bench --help lists them");
  KEYHOLE_CHECK(options.session.threads >= 0, "bench: --threads is ", options.session.threads,
                "; 0 means all, else at least 1");
  KEYHOLE_CHECK(options.session.limit_s >= 0, "bench: --limit is ", options.session.limit_s,
                " s; it must not be negative");
  // A folder that cannot be written is refused before the work, not after it.
  std::string& json_path = options.session.json_path;
  if (!json_path.empty()) check_writable(json_path);
  if (is_stdout(json_path)) json_path = "-";
  options.session.table = chosen.front()->get_name();
  const std::string& folder = options.session.record_folder;
  if (!folder.empty()) check_writable(record_stem(folder, options.session.table, "any") + ".md");
  KEYHOLE_CHECK(!options.session.is_cpu_time || options.session.threads <= 1,
                "bench: --cpu-time measures one thread; --threads is ", options.session.threads);
  if (options.session.is_cpu_time) options.session.threads = 1;
  options.session.command = typed_command();
  options.session.device = options.device.settle(
      "bench", options.dtype.empty() ? std::nullopt : std::optional(dtype_from(options.dtype)));
  const bool is_on_gpu = is_gpu(options.session.device);
  KEYHOLE_CHECK(is_on_gpu || !options.session.is_cold,
                "bench: --cold overwrites the second-level cache of a GPU, and this run is on the "
                "CPU; leave it out");
  KEYHOLE_CHECK(is_on_gpu || !options.session.is_profiled,
                "bench: --profile sets the marks of a GPU's profiler, and this run is on the CPU; "
                "leave it out");
  KEYHOLE_CHECK(!is_on_gpu || !options.session.is_cpu_time,
                "bench: --cpu-time measures the processor, and this run is on a GPU; pass --device "
                "cpu with it");
  Session session(options.session);
  for (const BenchTable& table : bench_tables()) {
    if (options.session.table == table.name) table.run(session, options);
  }
  return session.finish();
}

}  // namespace

Runner add_bench(CLI::App& app, Context&) {
  auto options = std::make_shared<Options>();
  app.add_option("--json", options->session.json_path,
                 "write the records there, one JSON object a line; - for stdout, without tables")
      ->type_name("FILE");
  app.add_option("--record", options->session.record_folder,
                 "keep tables and records in this folder, under date and machine")
      ->type_name("FOLDER");
  app.add_flag("--quick", options->session.is_quick, "fewer repeats and sampled checks");
  app.add_option("--threads", options->session.threads, "at most this many; all when not given");
  app.add_option("--limit", options->session.limit_s,
                 "seconds; a call expected to take longer is not made (20; 1.5 with --quick)");
  options->device.add_to(app, "a GPU when there is one");
  app.add_flag("--cold", options->session.is_cold,
               "on a GPU: overwrite its second-level cache before each call");
  app.add_flag("--cpu-time", options->session.is_cpu_time,
               "processor time of one thread, for a machine that others use too");
  for (const BenchTable& table : bench_tables()) {
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
  return [&app, options] { return run(app, *options); };
}

}  // namespace keyhole::cli
