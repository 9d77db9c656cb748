// cli/demo.cpp
// keyhole demo: what was found here, a picture, a checked forward and backward, the speed-up, and
// where to go next. Under ten seconds.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/bench/machine.h"
#include "cli/bench/measure.h"
#include "cli/command_line.h"
#include "cli/gpu/measure.h"
#include "cli/options.h"
#include "judge/trials.h"
#include "render/text.h"
#include "runtime/gpu.h"
#include "runtime/registry.h"

namespace keyhole::cli {
namespace {

constexpr const char* kPattern = "streaming(16, 64)";

struct Checked {
  std::string kernel;
  judge::Finding finding;
};

DType dtype_on(const Device& device) { return is_gpu(device) ? DType::bf16 : DType::f32; }

// One kernel of each operation, put to its first trial: the comparison with the reference.
std::vector<Checked> check_both_passes(const Device& device) {
  const Pattern pattern = parse(kPattern);
  const judge::Subject subject{.pattern = pattern,
                               .plan = plan(pattern, 300, 300),
                               .batch = 1,
                               .heads = 4,
                               .kv_heads = 2,
                               .q_len = 300,
                               .k_len = 300,
                               .head_dim = 64,
                               .v_head_dim = 64,
                               .seed = 1,
                               .gpu = device,
                               .is_aligned = is_gpu(device)};
  std::vector<Checked> checked;
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    const KernelEntry& kernel =
        choose(kernel_table(), request_for(device, operation, dtype_on(device), 64, 64));
    const auto trial = std::ranges::find(judge::trials(), operation, &judge::Trial::operation);
    checked.push_back({kernel.name, trial->run(kernel, pick_tile(kernel, subject.plan), subject)});
  }
  return checked;
}

struct Speed {
  bench::Case timed;
  double dense_ms, sparse_ms;
};

Speed measure(const Device& device) {
  bench::Case c{.name = "demo",
                .pattern = parse(kPattern),
                .pattern_text = kPattern,
                .q_len = is_gpu(device) ? 16384 : 4096,
                .heads = is_gpu(device) ? 16 : 4,
                .head_dim = is_gpu(device) ? 128 : 64,
                .dtype = dtype_on(device),
                .device = device};
  c.k_len = c.q_len, c.kv_heads = c.heads;
  bench::Effort effort;
  effort.check = {.all_rows_up_to = 0, .sampled_keys = 0, .min_rows = 2};  // the step before checks
  effort.timing.min_runs = 3, effort.timing.budget_ms = 800;
  if (is_gpu(device)) effort.timing.stopwatch = bench::gpu_stopwatch(device, /*is_cold=*/false);
  const auto inputs = std::make_shared<bench::Inputs>(c);
  const bench::Subject dense_one(with_pattern(c, causal(), "causal"), inputs, effort);
  const bench::Subject sparse_one(c, inputs, effort);
  const auto timings = bench::time_in_turns({dense_one.call(), sparse_one.call()}, effort.timing);
  return {c, timings[0].median_ms, timings[1].median_ms};
}

int demo(const Device& device, const Context& context) {
  const bench::Machine machine = bench::this_machine(device);
  const Pattern small = parse("causal & (window(2) | sinks(1))");
  const Picture picture = look(small, {.q_len = 12, .k_len = 12}, 0, 0, kTextCells);
  if (!context.json) {
    print("{}\nkeyhole {}, on {}\n\n", paint(Ink::bold, "1. this machine"), version(),
          is_gpu(device) ? bench::describe(machine)
                         : fmt::format("{}; no GPU: {}", bench::describe(machine),
                                       gpus().empty() ? why_no_gpu() : "--device cpu"));
    print("{}\n{}\n", paint(Ink::bold, "2. a pattern says what attends to what"),
          coloured_text(picture));
    print("{}\n", paint(Ink::bold, "3. kernels follow its plan; the fp64 reference agrees"));
  }
  const std::vector<Checked> checked = check_both_passes(device);
  bool is_passed = true;
  for (const Checked& check : checked) {
    const judge::Finding& finding = check.finding;
    is_passed &= finding.complaint.empty();
    if (context.json) continue;
    print("{:<20} {}, 300 tokens: error {:.1e}, allowed {:.1e}   {}\n", check.kernel, kPattern,
          finding.error, finding.allowed,
          finding.complaint.empty() ? paint(Ink::green, "ok")
                                    : paint(Ink::red, "FAILED: " + finding.complaint));
  }
  const Speed speed = measure(device);
  const double ratio = speed.sparse_ms > 0 ? speed.dense_ms / speed.sparse_ms : 0;
  if (context.json) {
    Json json = {{"machine", bench::describe(machine)},
                 {"device", device_text(device)},
                 {"pattern", kPattern},
                 {"passed", is_passed},
                 {"len", speed.timed.q_len},
                 {"heads", speed.timed.heads},
                 {"head_dim", speed.timed.head_dim},
                 {"dtype", to_string(speed.timed.dtype)},
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
  print("forward, {} tokens, {} heads of {}, {}\n", speed.timed.q_len, speed.timed.heads,
        speed.timed.head_dim, to_string(speed.timed.dtype));
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
  auto device = std::make_shared<DeviceOption>();
  device->add_to(app, "a GPU when there is one");
  add(app, {json_option(context)});
  app.footer("examples:\n  keyhole demo\n  keyhole demo --device cpu");
  return [device, &context] { return demo(device->settle("demo"), context); };
}

}  // namespace keyhole::cli
