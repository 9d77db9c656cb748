// cli/bench/session.h
// One run of `keyhole bench`: what it was asked for, how hard to look, the machine it runs on, the
// records so far; and its tables, one function each: each checks, measures, prints, and keeps
// records.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/bench/machine.h"
#include "cli/bench/measure.h"
#include "cli/options.h"

namespace keyhole::bench {

// All options of all tables; each table's subcommand offers its own.
struct Options {
  std::string table;    // "all", "sweep", ...
  std::string command;  // as typed, for the records
  cli::DeviceOption device_option;
  Device device = {};        // what computes: what the option comes to
  bool is_quick = false;     // fewer repeats, sampled checks, shorter lengths
  int64_t threads = 0;       // 0: all
  double limit_s = 0;        // a call expected to take longer is not made; 0: 20, quick: 1.5
  bool is_cold = false;      // GPU: its second-level cache is overwritten before each call
  bool is_cpu_time = false;  // processor time of one thread: for a machine that others use too
  std::string json_path;  // records go there, one JSON object a line; empty: nowhere; "-": stdout
  std::string record_folder;  // tables and records also go there, under date and machine

  bool is_training = false;  // tables of patterns: forward and backward are timed together
  bool is_profiled = false;  // GPU: one call between the marks of a profiler, not timed
  bool is_deterministic = false;
  std::string backend = "auto", indices;
  std::string len, dtype;  // dtype not given: f32 on the CPU, bf16 on a GPU
  std::string case_names, case_file, pattern;
  std::optional<int64_t> heads, kv_heads, head_dim;
  int64_t window = 64, sinks = 16, block = 16, channels = 384;
  int64_t max_len = 131072;
  std::optional<int64_t> queries, entries, best, q_heads;  // of a selection
  std::string index_dtype;
  cli::NormalizerOption normalizer;
};

struct Peak {
  std::string name;  // "FMA", "FFMA", "mma.sync", "wgmma"
  double gflops = 0;
};

class Session {
 public:
  explicit Session(const Options& options);

  const Options& options() const { return options_; }
  const Effort& effort() const { return effort_; }
  const Machine& machine() const { return machine_; }
  const Device& device() const { return options_.device; }
  bool is_on_gpu() const { return cli::is_gpu(options_.device); }
  int threads() const;
  // What this device can do at most with that dtype, and the speed of a GPU's memory; measured on
  // first use.
  const Peak& peak(DType dtype);
  double copy_gbps();
  // How the times were taken, for the line above a table: "bf16, NVIDIA H200, cold cache".
  std::string conditions(DType dtype) const;

  // A subject that is ready, or nothing when its check failed: then it is not timed, not recorded,
  // the run ends with exit code 1, and the complaint is on stderr. It uses the tensors of `inputs`
  // where they fit the case, else new ones, which `inputs` then holds.
  std::optional<Subject> prepare(const Case& c, std::shared_ptr<Inputs>& inputs);

  // Tells that a case could not be timed, on stderr and by the exit code.
  void fail(const char* how, const Case& c, const std::string& why);

  // Adds the machine, the commit and the suite to a record and keeps it.
  void keep(const std::string& suite, nlohmann::json record);
  // Prints, the machine before the first text; nothing where stdout carries the records.
  void print(const std::string& text);
  void print(const cli::Table& table) { print(table.text()); }

  void miss_bar() { is_bar_missed_ = true; }  // the run ends with exit code 1
  // Writes the records; the exit code.
  int finish();

 private:
  std::string place() const;     // in the names of records: "x86_64", "h200"
  std::string markdown() const;  // where and how it was measured, and all that was printed

  Options options_;
  Effort effort_;
  Machine machine_;
  nlohmann::json common_;              // what every record says
  std::map<std::string, Peak> peaks_;  // by name
  std::optional<double> copy_gbps_;
  std::vector<nlohmann::json> records_;
  int failures_ = 0;
  bool is_bar_missed_ = false;
  std::string printed_;
};

// "records/cpu/2026-01-31-x86_64", and "-sweep" after it for one table alone.
std::string record_stem(const std::string& folder, const std::string& table,
                        const std::string& place);

std::string ms_text(double ms);             // four figures: "0.1234", "12.34", "12340"
std::string duration_text(double seconds);  // "~40 s", "~12 min", "~3 h"
std::string speedup_text(double speedup);   // "12.3x"

// Lengths that double from first to last; last itself is always among them.
struct Lengths {
  int64_t first = 0, last = 0;
};
std::vector<int64_t> doubling(const Lengths& lengths, int64_t factor = 2);

// ---- what the tables have in common ----

// "128:4096", or one length; otherwise, where the text is empty.
Lengths lengths_from(const std::string& text, Lengths otherwise);
// The number of an option, which must be at least 1.
int64_t positive(std::optional<int64_t> given, const char* option, int64_t otherwise = 1);
DType dtype_of(const Session& session);

// What most tables walk: lengths that grow, of tensors that are otherwise the same.
struct Range {
  Lengths lengths;
  int64_t heads = 1, head_dim = 64;
  DType dtype = DType::f32;

  // What the options ask for; `lengths` and `heads` where they do not say.
  Range(const Session& session, Lengths lengths, int64_t heads);
  std::string heads_text() const;  // "2 heads of 64"
  // The case of so many queries and keys, on the device of the session; both passes of it when
  // training is timed.
  Case at(const Session& session, std::string name, const Pattern& pattern, std::string text,
          int64_t length) const;
};

// ---- the tables ----

// Case by case: median, spread, useful work, share of the machine's peak.
void bench_forward(Session& session);
void bench_backward(Session& session);

// The classic tables: streaming attention, so many channels as several heads and as one; and
// block-diagonal attention, with and without causal.
void bench_streaming(Session& session);
void bench_blocks(Session& session);

// All patterns of the catalog at lengths that grow by a factor; and, from the same measurements,
// how their times grow. The last makes both tables and measures once.
void bench_sweep(Session& session);
void bench_compare(Session& session);
void bench_sweep_and_compare(Session& session);

// The shortest length at which each pattern beats dense.
void bench_break_even(Session& session);

// Memory a call needs besides its tensors, at the first length and at the last.
void bench_memory(Session& session);

// Entmax or top-K beside softmax of the same pattern: time, pairs that keep weight, memory.
void bench_splash(Session& session);

// The steps of a key selection, and the attention that it is for.
void bench_select(Session& session);

// What it takes to compile plans of up to a million tokens.
void bench_planning(Session& session);

}  // namespace keyhole::bench
