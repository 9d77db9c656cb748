// cli/demo.cpp
// keyhole demo: what was found here, a picture, a checked forward and backward, the speed-up, and
// where to go next. Under ten seconds.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench/inputs.h"
#include "cli/bench/machine.h"
#include "cli/bench/timing.h"
#include "cli/check/trials.h"
#include "cli/render/text.h"
#include "cli/verbs.h"
#include "runtime/dispatch.h"
#include "runtime/registry.h"

namespace keyhole::cli {
namespace {

constexpr const char* kPattern = "streaming(16, 64)";

struct Checked {
  std::string kernel;
  Finding finding;
};

// One f32 kernel of each operation, put to its first trial: the comparison with the reference.
std::vector<Checked> check_both_passes() {
  const Pattern pattern = parse(kPattern);
  const Subject subject{.pattern = pattern,
                        .plan = plan(pattern, 300, 300),
                        .batch = 1,
                        .heads = 4,
                        .kv_heads = 2,
                        .q_len = 300,
                        .k_len = 300,
                        .head_dim = 64,
                        .v_head_dim = 64,
                        .seed = 1};
  std::vector<Checked> checked;
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    const KernelEntry& kernel = choose(kernel_table(), {"auto", operation, DType::f32, 64, 64});
    for (const Trial& trial : trials()) {
      if (trial.operation != operation) continue;
      checked.push_back({kernel.name, trial.run(kernel, pick_tile(kernel, subject.plan), subject)});
      break;
    }
  }
  return checked;
}

struct Speed {
  int64_t len = 4096, heads = 4, head_dim = 64;
  double dense_ms = 0, sparse_ms = 0;
};

Speed measure() {
  Speed speed;
  const std::initializer_list<int64_t> shape = {1, speed.heads, speed.len, speed.head_dim};
  bench::Tensor q(DType::f32, shape), k(DType::f32, shape), v(DType::f32, shape),
      out(DType::f32, shape);
  q.fill_normal(1), k.fill_normal(2), v.fill_normal(3);
  const Plan dense_plan = plan(causal(), speed.len, speed.len);
  const Plan sparse_plan = plan(parse(kPattern), speed.len, speed.len);
  bench::TimingEffort effort;
  effort.min_runs = 3, effort.budget_ms = 800;
  const std::vector<bench::Timing> timings =
      bench::time_in_turns({[&] { attention_forward(q, k, v, dense_plan, out); },
                            [&] { attention_forward(q, k, v, sparse_plan, out); }},
                           effort);
  speed.dense_ms = timings[0].median_ms, speed.sparse_ms = timings[1].median_ms;
  return speed;
}

int demo(const Context& context) {
  const bench::Machine machine = bench::this_machine();
  const Pattern small = parse("causal & (window(2) | sinks(1))");
  const Picture picture = look(small, {.q_len = 12, .k_len = 12}, 0, 0, kTextCells);
  if (!context.json) {
    print("{}\nkeyhole {}, backend cpu ({}), {}\n\n", paint(Ink::bold, "1. this machine"),
          version(), machine.simd, bench::describe(machine));
    print("{}\n{}\n", paint(Ink::bold, "2. a pattern says who attends to whom"),
          picture_text(picture));
    print("{}\n", paint(Ink::bold, "3. kernels follow its plan; the fp64 reference agrees"));
  }
  const std::vector<Checked> checked = check_both_passes();
  bool is_passed = true;
  for (const Checked& check : checked) {
    const Finding& finding = check.finding;
    is_passed &= finding.complaint.empty();
    if (context.json) continue;
    print("{:<20} {}, 300 tokens: error {:.1e}, allowed {:.1e}   {}\n", check.kernel, kPattern,
          finding.error, finding.allowed,
          finding.complaint.empty() ? paint(Ink::green, "ok")
                                    : paint(Ink::red, "FAILED: " + finding.complaint));
  }
  const Speed speed = measure();
  const double ratio = speed.sparse_ms > 0 ? speed.dense_ms / speed.sparse_ms : 0;
  if (context.json) {
    Json json = {{"machine", bench::describe(machine)},
                 {"pattern", kPattern},
                 {"passed", is_passed},
                 {"len", speed.len},
                 {"heads", speed.heads},
                 {"head_dim", speed.head_dim},
                 {"dense_causal_ms", speed.dense_ms},
                 {"sparse_ms", speed.sparse_ms},
                 {"speedup", ratio},
                 {"checks", Json::array()}};
    for (const Checked& check : checked) {
      json["checks"].push_back({{"kernel", check.kernel},
                                {"error", check.finding.error},
                                {"allowed", check.finding.allowed}});
    }
    print_json(json);
    return is_passed ? kDone : kCheckFailed;
  }
  print("\n{}\n", paint(Ink::bold, "4. time is proportional to the pairs kept"));
  print("forward, {} tokens, {} heads of {}, f32\n", speed.len, speed.heads, speed.head_dim);
  print("  causal               {:8.2f} ms\n  {:<20} {:8.2f} ms   {}\n", speed.dense_ms, kPattern,
        speed.sparse_ms, paint(Ink::green, fmt::format("{:.1f} times faster", ratio)));
  print("\n{}\n", paint(Ink::bold, "5. next"));
  print(
      "  keyhole show \"bigbird(8, 3, 2, 1, 7)\" --len 128 --html bigbird.html\n"
      "  keyhole plan \"causal & window(1023)\" --len 65536\n"
      "  keyhole check\n");
  return is_passed ? kDone : kCheckFailed;
}

}  // namespace

Runner add_demo(CLI::App& app, Context& context) {
  add_json_option(app, context);
  app.footer("example:\n  keyhole demo");
  return [&context] { return demo(context); };
}

}  // namespace keyhole::cli
