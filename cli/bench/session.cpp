// cli/bench/session.cpp
// Takes options, gives what the tables share: effort, checks before times, records with machine and
// commit.
#include "cli/bench/session.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>
#include <cstdio>
#include <functional>
#include <regex>

#include "base/check.h"
#include "base/parallel.h"
#include "cli/files.h"
#include "cli/gpu/measure.h"
#include "runtime/gpu.h"

namespace keyhole::bench {
namespace {

Effort effort_of(const Options& options) {
  Effort effort;
  effort.options.threads = int(options.threads);
  effort.options.backend = options.backend;
  effort.options.deterministic = options.is_deterministic;
  effort.indices = options.indices;
  if (options.is_quick) {
    effort.check = {
        .all_rows_up_to = 256, .sampled_keys = int64_t{1} << 19, .min_rows = 8, .max_rows = 64};
    effort.timing = {
        .min_runs = 3, .max_runs = 9, .budget_ms = 60, .most_ms = 1000, .min_run_ms = 0.2};
  }
  effort.timing.is_cpu_time = options.is_cpu_time;
  if (cli::is_gpu(options.device)) {
    effort.timing.stopwatch = gpu_stopwatch(options.device, options.is_cold);
    if (options.is_cold) effort.timing.most_calls_per_run = 1;
  }
  return effort;
}

// How a device multiplies, and what it reaches so.
struct Way {
  const char* name;
  std::function<double(const Device& device)> measure;
};

// Of a GPU. A kernel that multiplies another way is held against it all the same.
Way fastest_way(const Device& device, DType dtype) {
  const int capability = gpu(device).compute_capability;
  if (bytes_of(dtype) != 2 || capability < 80) return {"FFMA", measure_ffma_gflops};
#ifdef KEYHOLE_HAVE_SM90
  if (capability == 90) return {"wgmma", measure_wgmma_gflops};
#endif
  return {"mma.sync", measure_mma_gflops};
}

}  // namespace

std::string record_stem(const std::string& folder, const std::string& table,
                        const std::string& place) {
  const std::string suffix = table == "all" ? "" : "-" + table;
  return fmt::format("{}/{}-{}{}", folder, utc_now().substr(0, 10), place, suffix);
}

Session::Session(const Options& options)
    : options_(options), effort_(effort_of(options)), machine_(this_machine(options.device)) {
  if (options_.limit_s == 0) options_.limit_s = options_.is_quick ? 1.5 : 20;
  const Commit commit = this_commit();
  common_ = {{"machine", to_json(machine_)},
             {"threads", threads()},
             {"commit", commit.id},
             {"dirty", commit.is_dirty},
             {"time", utc_now()},
             {"command", options.command},
             {"quick", options.is_quick},
             {"device", cli::device_text(options.device)},
             {"clock", cli::is_gpu(options.device) ? "CUDA events"
                       : options.is_cpu_time       ? "cpu"
                                                   : "wall"}};
  if (cli::is_gpu(options.device)) common_["cold"] = options.is_cold;
}

int Session::threads() const {
  return options_.threads > 0 ? int(options_.threads) : max_threads();
}

const Peak& Session::peak(DType dtype) {
  const auto measure_cpu = [this](const Device&) {
    return measure_peak_gflops(threads(), options_.is_cpu_time);
  };
  const Way way = is_on_gpu() ? fastest_way(device(), dtype) : Way{"FMA", measure_cpu};
  Peak& peak = peaks_[way.name];
  if (peak.gflops == 0) peak = {way.name, way.measure(device())};
  return peak;
}

double Session::copy_gbps() {
  if (!copy_gbps_) copy_gbps_ = measure_copy_gbps(device());
  return *copy_gbps_;
}

std::string Session::conditions(DType dtype) const {
  std::string text = to_string(dtype);
  if (options_.is_training) text += ", forward + backward";
  if (!is_on_gpu()) return text;
  return fmt::format("{}, {}, {} cache", text, gpu(device()).name,
                     options_.is_cold ? "cold" : "warm");
}

std::string Session::place() const {
  if (!is_on_gpu()) return machine_.arch;
  // "h200" of "NVIDIA H200", "geforce-rtx-4090" of "NVIDIA GeForce RTX 4090".
  std::string name = gpu(device()).name;
  if (name.starts_with("NVIDIA ")) name = name.substr(7);
  for (char& c : name)
    c = std::isalnum(static_cast<unsigned char>(c)) ? char(std::tolower(c)) : '-';
  return name;
}

std::optional<Subject> Session::prepare(const Case& c, std::shared_ptr<Inputs>& inputs) {
  if (!inputs || !inputs->fits(c)) {
    inputs.reset();  // before the new ones are made: two sets of long tensors need not fit at once
    inputs = std::make_shared<Inputs>(c);
  }
  Subject subject(c, inputs, effort_);
  if (subject.check_result().is_passed) return subject;
  fail("check failed", c, say(subject.kernel(), ": ", subject.check_result().complaint));
  return std::nullopt;
}

void Session::fail(const char* how, const Case& c, const std::string& why) {
  ++failures_;
  fmt::print(stderr, "{}: {} ({}, {} x {}): {}\n", how, c.name, c.pattern_text, c.q_len, c.k_len,
             why);
}

void Session::keep(const std::string& suite, nlohmann::json record) {
  nlohmann::json whole = common_;
  whole["suite"] = suite;
  whole.update(record);
  records_.push_back(std::move(whole));
}

void Session::print(const std::string& text) {
  const std::string all = printed_.empty() ? describe(machine_) + "\n" + text : text;
  printed_ += all;
  if (options_.json_path == "-") return;
  cli::write_out(all);
  std::fflush(stdout);
}

std::string Session::markdown() const {
  const Commit commit = this_commit();
  return fmt::format(
      "# keyhole bench {}, {}\n\n"
      "| | |\n|---|---|\n"
      "| command | `{}` |\n"
      "| commit | {}{} |\n"
      "| machine | {}{}, {} cores, {:.0f} GiB, {} |\n"
      "| built by | {}; kernels use {} |\n"
      "| threads | {}; times are {} |\n"
      "| checked | every case against the fp64 reference before it was timed |\n\n"
      "The same as JSON, one record a line: the `.jsonl` file beside this one.\n\n"
      "```text{}```\n",
      options_.table, common_["time"].get<std::string>(), options_.command, commit.id,
      commit.is_dirty ? ", with changes" : "", machine_.gpu.empty() ? "" : machine_.gpu + "; ",
      machine_.cpu, machine_.cores, machine_.memory_gib, machine_.system, machine_.compiler,
      machine_.simd, threads(),
      is_on_gpu()
          ? fmt::format("taken by CUDA events, {} cache", options_.is_cold ? "cold" : "warm")
      : options_.is_cpu_time ? "processor time of one thread"
                             : "by the clock on the wall",
      // Text as a file keeps it: without the escape sequences of a terminal.
      std::regex_replace(printed_.substr(printed_.find('\n')), std::regex("\x1b[^m]*m"), ""));
}

int Session::finish() {
  std::string lines;
  for (const nlohmann::json& record : records_) lines += record.dump() + "\n";
  if (options_.json_path == "-") {
    cli::write_out(lines);
  } else if (!options_.json_path.empty()) {
    cli::write_file(options_.json_path, lines);
    cli::print("\n{} records in {}\n", records_.size(), options_.json_path);
  }
  if (!options_.record_folder.empty()) {
    const std::string stem = record_stem(options_.record_folder, options_.table, place());
    cli::write_file(stem + ".jsonl", lines);
    cli::write_file(stem + ".md", markdown());
    if (options_.json_path != "-") cli::print("\nrecorded as {}.md and .jsonl\n", stem);
  }
  if (failures_ == 0) return is_bar_missed_ ? cli::kCheckFailed : cli::kDone;
  fmt::print(stderr, "{} case{} failed and {} not timed\n", failures_, failures_ == 1 ? "" : "s",
             failures_ == 1 ? "was" : "were");
  return cli::kCheckFailed;
}

std::string ms_text(double ms) {
  const int digits_before = ms >= 1 ? int(std::log10(ms)) + 1 : 0;
  return fmt::format("{:.{}f}", ms, std::max(0, 4 - std::max(1, digits_before)));
}

std::string duration_text(double seconds) {
  if (seconds < 100) return fmt::format("~{:.0f} s", std::ceil(seconds));
  if (seconds < 100 * 60) return fmt::format("~{:.0f} min", std::ceil(seconds / 60));
  return fmt::format("~{:.0f} h", std::ceil(seconds / 3600));
}

std::string speedup_text(double speedup) {
  return speedup < 10 ? fmt::format("{:.2f}x", speedup) : fmt::format("{:.1f}x", speedup);
}

std::vector<int64_t> doubling(const Lengths& lengths, int64_t factor) {
  std::vector<int64_t> all;
  for (int64_t length = lengths.first; length < lengths.last; length *= factor) {
    all.push_back(length);
  }
  all.push_back(lengths.last);
  return all;
}

// ---- what the tables have in common ----

Lengths lengths_from(const std::string& text, Lengths otherwise) {
  constexpr int64_t kMostTokens = int64_t{1} << 24;
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

DType dtype_of(const Session& session) {
  const std::string& given = session.options().dtype;
  if (!given.empty()) return cli::dtype_from(given);
  return session.is_on_gpu() ? DType::bf16 : DType::f32;
}

Range::Range(const Session& session, Lengths usual_lengths, int64_t usual_heads)
    : lengths(lengths_from(session.options().len, usual_lengths)),
      heads(positive(session.options().heads, "--heads", usual_heads)),
      head_dim(positive(session.options().head_dim, "--head-dim", 64)),
      dtype(dtype_of(session)) {}

std::string Range::heads_text() const {
  return fmt::format("{} head{} of {}", heads, heads == 1 ? "" : "s", head_dim);
}

Case Range::at(const Session& session, std::string name, const Pattern& pattern, std::string text,
               int64_t length) const {
  const bool is_training = session.options().is_training;
  return {.name = std::move(name),
          .pattern = pattern,
          .pattern_text = std::move(text),
          .q_len = length,
          .k_len = length,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = head_dim,
          .dtype = dtype,
          .operation = is_training ? Operation::backward : Operation::forward,
          .has_forward_too = is_training,
          .device = session.device()};
}

}  // namespace keyhole::bench
