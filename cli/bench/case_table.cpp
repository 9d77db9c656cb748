// cli/bench/case_table.cpp
// Takes cases, gives the table of times, useful work and share of peak; on a GPU also the traffic
// and the memory.
#include <fmt/format.h>

#include "base/check.h"
#include "cli/bench/cases.h"
#include "cli/bench/session.h"
#include "cli/gpu/measure.h"

namespace keyhole::bench {
namespace {

// What the rows of a table say, on the CPU and on a GPU.
class CaseTable {
 public:
  explicit CaseTable(Session& session) : session_(session) {}

  void add(const Subject& subject, const Timing& timing, nlohmann::json& record) {
    const Case& c = subject.subject_case();
    const Peak& peak = session_.peak(c.dtype);
    const double gflops = record["gflops"];
    record["peak"] = peak.name;
    record["peak_gflops"] = peak.gflops;
    record["of_peak"] = gflops / peak.gflops;
    peaks_[peak.name] = peak.gflops;
    const CheckResult& result = subject.check_result();
    std::vector<std::string> cells = {
        c.name,
        subject.kernel(),
        result.is_sampled ? fmt::format("ok, {} rows", result.rows) : "ok",
        ms_text(timing.median_ms),
        fmt::format("{} .. {}", ms_text(timing.p10_ms), ms_text(timing.p90_ms)),
        gflops == 0 ? "-" : fmt::format("{:.1f}", is_on_gpu_ ? gflops / 1e3 : gflops),
        gflops == 0 ? "-" : cli::percent(gflops / peak.gflops)};
    if (c.is_sparse()) {
      sparse_ = fmt::format(
          "{}: useful work is that of the scores alone; keyhole bench splash tells "
          "how many pairs keep weight\n",
          to_string(c.normalizer));
    }
    if (record.contains("gathered_gbps")) {
      gathered_ += fmt::format("{}: rows of k and v gathered at {:.0f} GB/s\n", c.name,
                               record["gathered_gbps"].get<double>());
    }
    if (is_on_gpu_) {
      const double gbps = record["gbps"], copy_gbps = session_.copy_gbps();
      const int64_t bytes = subject.tensor_bytes() + subject.extra_bytes();
      record["copy_gbps"] = copy_gbps;
      record["of_copy"] = gbps / copy_gbps;
      record["peak_bytes"] = bytes;
      cells.insert(cells.end(), {fmt::format("{:.0f}", gbps), cli::percent(gbps / copy_gbps),
                                 cli::bytes_text(double(bytes)),
                                 cli::bytes_text(double(subject.extra_bytes()))});
    }
    table_.add(std::move(cells));
  }
  void add_failed(const Case& c) { table_.add({c.name, "", "FAILED"}, cli::Ink::red); }

  void print(const std::string& suite) {
    session_.print(is_on_gpu_ ? gpu_title(suite) : cpu_title(suite));
    session_.print(table_);
    session_.print(gathered_);
    if (!sparse_.empty()) session_.print(sparse_);
  }

 private:
  std::vector<std::string> header() const {
    std::vector<std::string> names = {
        "case",      "kernel",     "check",
        "median ms", "p10 .. p90", is_on_gpu_ ? "useful TFLOP/s" : "useful GFLOP/s",
        "of peak"};
    if (is_on_gpu_) names.insert(names.end(), {"GB/s", "of copy", "memory", "besides tensors"});
    return names;
  }
  std::string cpu_title(const std::string& suite) {
    return fmt::format("\n{}: {} threads, FMA peak {:.0f} GFLOP/s measured in this run\n", suite,
                       session_.threads(), session_.peak(DType::f32).gflops);
  }
  std::string gpu_title(const std::string& suite) {
    std::string peaks;
    for (const auto& [name, gflops] : peaks_)
      peaks += fmt::format("{} {:.0f} TFLOP/s, ", name, gflops / 1e3);
    return fmt::format(
        "\n{}: {}, {} cache. Peaks measured in this run: {}copy {:.0f} GB/s. GB/s: every tensor "
        "read or\nwritten once. memory: the most in use at once, by the GPU's pools; besides "
        "tensors: lists of the plan, scratch\n",
        suite, session_.machine().gpu, session_.options().is_cold ? "cold" : "warm", peaks,
        session_.copy_gbps());
  }

  Session& session_;
  bool is_on_gpu_ = cli::is_gpu(session_.device());
  std::string gathered_;                 // of plans of key lists: the rate that decides
  std::string sparse_;                   // of entmax and top_k: what is counted
  std::map<std::string, double> peaks_;  // those that a case was compared with
  cli::Table table_{header(), "lllrrrrrrrr"};
};

std::vector<Case> chosen_cases(const Session& session, Operation operation) {
  const Options& options = session.options();
  const Normalizer normalizer = options.normalizer.settle("bench");
  std::vector<Case> cases;
  if (options.pattern.empty()) {
    cases = options.case_file.empty()
                ? built_in_cases(operation, session.device(), options.case_names)
                : cases_from_file(options.case_file, operation, options.case_names);
  } else {
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
    c.dtype = dtype_of(session);
    c.operation = operation;
    for (const int64_t length : doubling(lengths_from(options.len, {}))) {
      c.name = fmt::format("given-{}", length);
      c.q_len = c.k_len = length;
      cases.push_back(c);
    }
  }
  for (Case& c : cases) c.device = session.device(), c.normalizer = normalizer;
  return cases;
}

void bench_cases(Session& session, const std::string& suite, const std::vector<Case>& cases) {
  CaseTable table(session);
  {
    cli::Progress progress("bench " + suite, int64_t(cases.size()));
    std::shared_ptr<Inputs> inputs;
    for (const Case& c : cases) {
      progress.step(c.name);
      std::optional<Subject> subject;
      try {
        subject = session.prepare(c, inputs);
      } catch (const Error& error) {
        if (cases.size() == 1 || error.kind() == ErrorKind::device) throw;
        session.fail("not run", c, error.what());  // the others are still to be timed
      }
      if (!subject) {
        table.add_failed(c);
        continue;
      }
      if (session.options().is_profiled) {
        profile_call(session.device(), subject->call());
        continue;
      }
      const Timing timing = time_call(subject->call(), session.effort().timing);
      nlohmann::json record = to_json(*subject, timing);
      table.add(*subject, timing, record);
      session.keep(suite, std::move(record));
    }
  }
  if (!session.options().is_profiled) table.print(suite);
}

// With --quick, cases longer than that are left out: their check, and backward a call, takes
// seconds.
void bench_operation(Session& session, Operation operation, int64_t longest_quick) {
  const Options& options = session.options();
  std::vector<Case> cases = chosen_cases(session, operation);
  std::vector<std::string> left_out;
  if (options.is_quick && options.pattern.empty() && options.case_names.empty()) {
    std::erase_if(cases, [&](const Case& c) {
      if (c.q_len > longest_quick) left_out.push_back(c.name);
      return c.q_len > longest_quick;
    });
  }
  bench_cases(session, to_string(operation), cases);
  if (left_out.empty()) return;
  session.print(fmt::format("left out with --quick: {}\n", fmt::join(left_out, ", ")));
}

}  // namespace

void bench_forward(Session& session) { bench_operation(session, Operation::forward, 65536); }
void bench_backward(Session& session) { bench_operation(session, Operation::backward, 32768); }

}  // namespace keyhole::bench
