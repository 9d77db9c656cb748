// bench/cpu_kernels.cpp
// What the cpu kernels reach of the machine's FMA peak, measured in the same run, what 16-bit
// inputs cost, and whether sparse patterns take time in proportion to the tiles they keep.
//
//   keyhole_cpu_kernels [--cpu-time] [--threads N]      exit code 1 when a bar is missed
//
// --cpu-time counts the processor's time of one thread: the way to measure on a shared machine.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/int_math.h"
#include "cli/bench/inputs.h"
#include "cli/bench/machine.h"
#include "cli/bench/peak.h"
#include "cli/bench/timing.h"
#include "cli/common.h"
#include "keyhole/attention.h"
#include "plan/estimate.h"
#include "runtime/dispatch.h"
#include "runtime/registry.h"

namespace keyhole::bench {
namespace {

struct Options {
  bool is_cpu_time = false;
  int threads = 0;
};

// A pattern, tensors of a shape, and the two calls.
class Subject {
 public:
  Subject(const char* text, DType dtype, int64_t heads, int64_t length, int64_t head_dim,
          const Options& options)
      : pattern_(parse(text)),
        plan_(plan(pattern_, {.batch = 1, .heads = heads, .q_len = length, .k_len = length})),
        head_dim_(head_dim),
        dtype_(dtype),
        q_(dtype, {1, heads, length, head_dim}),
        k_(dtype, {1, heads, length, head_dim}),
        v_(dtype, {1, heads, length, head_dim}),
        out_(dtype, {1, heads, length, head_dim}),
        lse_(DType::f32, {1, heads, length}),
        dout_(dtype, {1, heads, length, head_dim}),
        dq_(dtype, {1, heads, length, head_dim}),
        dk_(dtype, {1, heads, length, head_dim}),
        dv_(dtype, {1, heads, length, head_dim}) {
    options_.threads = options.threads;
    q_.fill_normal(1);
    k_.fill_normal(2);
    v_.fill_normal(3);
    dout_.fill_normal(4);
    forward();  // compiles the lists, and gives the backward pass its out and lse
  }

  void forward() { attention_forward(q_, k_, v_, plan_, out_, lse_, options_); }
  void backward() {
    attention_backward(dout_, q_, k_, v_, out_, lse_, plan_, {dq_, dk_, dv_, {}}, options_);
  }

  TileShape tile(Operation operation) const {
    const Request request = {"auto", operation, dtype_, head_dim_, head_dim_};
    return pick_tile(choose(kernel_table(), request), plan_);
  }
  // The tiles of dense attention that hold any pair, as a share of all of them.
  double kept_tile_share() const {
    const Request request = {"auto", Operation::forward, dtype_, head_dim_, head_dim_};
    const TileShape tile = choose(kernel_table(), request).tiles.front();
    const Shape& shape = plan_.shape();
    return count_tiles(pattern_, shape, tile) /
           (double(shape.heads) * double(ceil_div(shape.q_len, int64_t{tile.q})) *
            double(ceil_div(shape.k_len, int64_t{tile.k})));
  }
  // Pairs that a kernel really visits, in tiles that may be smaller, as a share of all pairs.
  double visited_share(Operation operation) const {
    const PlanReport report = plan_.explain(tile(operation));
    return double(report.visited_pairs) / double(report.all_pairs);
  }
  double flops(Operation operation) const {
    const PlanReport report = plan_.explain(tile(operation), head_dim_);
    return operation == Operation::forward ? report.flops_forward : report.flops_backward;
  }

 private:
  Pattern pattern_;
  Plan plan_;
  int64_t head_dim_;
  DType dtype_;
  Tensor q_, k_, v_, out_, lse_, dout_, dq_, dk_, dv_;
  AttentionOptions options_;
};

class Report {
 public:
  explicit Report(const Options& options)
      : options_(options),
        effort_({.is_cpu_time = options.is_cpu_time, .min_runs = 7, .budget_ms = 1500}) {}

  // Best of the runs: a neighbour on the machine can only make a call slower.
  std::vector<double> best_ms(const std::vector<std::function<void()>>& calls) const {
    std::vector<double> best;
    for (const Timing& timing : time_in_turns(calls, effort_)) best.push_back(timing.min_ms);
    return best;
  }
  void add(const std::string& what, double ms, const std::string& measured, const std::string& bar,
           bool is_met) {
    is_all_met_ = is_all_met_ && is_met;
    table_.add({what, fmt::format("{:.2f}", ms), measured, bar, is_met ? "met" : "MISSED"},
               is_met ? cli::Ink::plain : cli::Ink::red);
  }

  void share_of_peak() {
    constexpr double kLeastForward = 0.5, kLeastBackward = 0.4;
    Subject dense("dense", DType::f32, 4, 2048, 128, options_);
    const double before = measure_peak_gflops(options_.threads, options_.is_cpu_time);
    const auto ms = best_ms({[&] { dense.forward(); }, [&] { dense.backward(); }});
    const double peak =
        std::max(before, measure_peak_gflops(options_.threads, options_.is_cpu_time));
    const auto line = [&](const char* what, Operation operation, double call_ms, double least) {
      const double gflops = dense.flops(operation) / call_ms * 1e-6;
      add(what, call_ms,
          fmt::format("{:.0f} of {:.0f} GFLOP/s: {:.1f} %", gflops, peak, 100 * gflops / peak),
          fmt::format(">= {:.0f} %", 100 * least), gflops >= least * peak);
    };
    line("dense forward, f32 4 x 2048 x 128", Operation::forward, ms[0], kLeastForward);
    line("dense backward", Operation::backward, ms[1], kLeastBackward);
  }

  void half_precision() {
    constexpr double kMost = 1.25;
    for (const DType dtype : {DType::f16, DType::bf16}) {
      Subject plain("dense", DType::f32, 4, 2048, 128, options_);
      Subject half("dense", dtype, 4, 2048, 128, options_);
      const auto ms = best_ms({[&] { plain.forward(); }, [&] { half.forward(); },
                               [&] { plain.backward(); }, [&] { half.backward(); }});
      for (const int i : {0, 2}) {
        const double ratio = ms[size_t(i) + 1] / ms[size_t(i)];
        add(fmt::format("dense {}, {}", i == 0 ? "forward" : "backward", to_string(dtype)),
            ms[size_t(i) + 1], fmt::format("{:.2f} x the time of f32", ratio),
            fmt::format("<= {:.2f} x", kMost), ratio <= kMost);
      }
    }
  }

  void sparse() {
    constexpr double kMost = 1.3;
    Subject dense("dense", DType::f32, 4, 4096, 64, options_);
    for (const char* text :
         {"causal", "causal & window(511)", "window(256)", "blocks(64)", "longformer(512, 32)",
          "bigbird(64, 3, 3, 2, 1)", "strided(128)", "streaming(16, 64)"}) {
      Subject subject(text, DType::f32, 4, 4096, 64, options_);
      const auto ms = best_ms({[&] { dense.forward(); }, [&] { subject.forward(); },
                               [&] { dense.backward(); }, [&] { subject.backward(); }});
      for (const auto& [operation, i] :
           {std::pair{Operation::forward, size_t{0}}, std::pair{Operation::backward, size_t{2}}}) {
        const double share = subject.kept_tile_share();
        const double ratio = ms[i + 1] / (ms[i] * share);
        const double of_visited = ms[i + 1] / (ms[i] * subject.visited_share(operation));
        add(fmt::format("{}, {}, tile {}", text, to_string(operation),
                        to_string(subject.tile(operation))),
            ms[i + 1],
            fmt::format("{:.2f} x dense x {:.2f} % of tiles; {:.2f} x by pairs visited", ratio,
                        100 * share, of_visited),
            fmt::format("<= {:.1f} x", kMost), ratio <= kMost);
      }
    }
  }

  void streaming() {
    constexpr double kLeast = 15;
    for (const auto& [heads, head_dim] : {std::pair{6, 64}, {4, 128}, {1, 384}}) {
      Subject causal("causal", DType::f32, heads, 4096, head_dim, options_);
      Subject narrow("streaming(16, 64)", DType::f32, heads, 4096, head_dim, options_);
      const auto ms = best_ms({[&] { causal.forward(); }, [&] { narrow.forward(); }});
      add(fmt::format("streaming(16, 64), {} x 4096 x {}", heads, head_dim), ms[1],
          fmt::format("{:.1f} x as fast as causal", ms[0] / ms[1]),
          fmt::format(">= {:.0f} x", kLeast), ms[0] >= kLeast * ms[1]);
    }
  }

  int print() const {
    fmt::print("{}\n{}", describe(this_machine()), table_.text());
    return is_all_met_ ? 0 : 1;
  }

 private:
  Options options_;
  TimingEffort effort_;
  cli::Table table_{{"case", "best ms", "measured", "bar", "verdict"}, "lrrrl"};
  bool is_all_met_ = true;
};

int run(const std::vector<std::string>& words) {
  Options options;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--cpu-time") {
      options = {.is_cpu_time = true, .threads = 1};
    } else {
      KEYHOLE_CHECK(words[i] == "--threads" && i + 1 < words.size(), "unexpected \"", words[i],
                    "\"; accepted are --cpu-time and --threads N");
      options.threads = std::atoi(words[++i].c_str());
    }
  }
  Report report(options);
  report.share_of_peak();
  report.half_precision();
  report.sparse();
  report.streaming();
  return report.print();
}

}  // namespace
}  // namespace keyhole::bench

int main(int count, char** words) {
  try {
    return keyhole::bench::run({words + 1, words + count});
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
}
