// cli/bench/memory.cpp
// What a call needs besides its tensors: the peak of the process, or of the GPU's memory pools,
// during the first call at a length (plan and tile lists included), less what was held before.
// Attention that stores scores would need 16 times as much for four times the tokens.
#include <fmt/format.h>
#include <malloc.h>

#include <cstdlib>
#include <fstream>

#include "base/check.h"
#include "cli/bench/measure.h"
#include "cli/bench/session.h"
#include "cli/gpu/measure.h"
#include "cli/options.h"

namespace keyhole::bench {
namespace {

// A line of /proc/self/status such as "VmHWM:   1234 kB", in KiB; 0 where there is none.
double status_kib(const char* key) {
  return std::strtod(proc_field("/proc/self/status", key).c_str(), nullptr);
}

}  // namespace

std::optional<double> extra_bytes(const Case& c, AttentionOptions options) {
  const auto inputs = std::make_shared<Inputs>(c);
  for (Tensor* tensor : {&inputs->out, &inputs->lse, &inputs->dq, &inputs->dk, &inputs->dv}) {
    if (tensor->view().is_given()) tensor->fill_zero();  // pages that count as before
  }
  options.normalizer = c.normalizer;
  std::optional<SupportKeys> support;
  if (c.is_sparse()) options.support = support.emplace(c).view();
  if (c.does_backward()) inputs->run_forward(plan(c.pattern, c.shape()), options);
  const auto needed = watch_memory(c.device);
  if (!needed) return std::nullopt;
  const Plan made = plan(c.pattern, c.shape());
  c.does_backward() ? inputs->run_backward(made, options) : inputs->run_forward(made, options);
  return (*needed)();
}

std::optional<std::function<double()>> watch_memory(const Device& device) {
  if (cli::is_gpu(device)) {
    return [watch = MemoryWatch(device)] { return double(watch.extra_bytes()); };
  }
  malloc_trim(0);
  // Lets the peak start anew from what is held now, where the system offers it.
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;
  if (!clear.good()) return std::nullopt;
  return
      [before = status_kib("VmRSS")] { return 1024 * std::max(0.0, status_kib("VmHWM") - before); };
}

void bench_memory(Session& session) {
  const Range range(session, {4096, 16384}, 2);
  const auto [first, last] = range.lengths;
  cli::Table table({"pattern", "pass", "extra at " + cli::with_thousands(first),
                    "extra at " + cli::with_thousands(last), "tensors there", "L x L scores"},
                   "llrrrr");
  const double ratio = double(last) / double(first);
  for (const Operation operation : {Operation::forward, Operation::backward}) {
    for (const char* text : {"causal", "streaming(16, 64)", "bigbird(64, 3, 3, 2, 1)"}) {
      // Makes the threads and their stacks before the measured call.
      Case c = range.at(session, fmt::format("memory-{}-{}", to_string(operation), text),
                        parse(text), text, /*length=*/256);
      c.operation = operation;
      std::shared_ptr<Inputs> inputs;
      if (!session.prepare(c, inputs)) continue;
      inputs.reset();
      std::vector<double> extra;
      for (const int64_t length : {first, last}) {
        c.q_len = c.k_len = length;
        const auto bytes = extra_bytes(c, session.effort().options);
        if (!bytes) {
          session.print("\nmemory: not measured; this system has no /proc/self/clear_refs\n");
          return;
        }
        extra.push_back(*bytes);
      }
      const double tensors = double(c.heads * c.q_len * c.head_dim) * double(bytes_of(c.dtype)) *
                             (operation == Operation::forward ? 4 : 8);
      const double scores = c.all_pairs() * double(bytes_of(c.dtype));
      table.add({text, to_string(operation), cli::bytes_text(extra[0]), cli::bytes_text(extra[1]),
                 cli::bytes_text(tensors), cli::bytes_text(scores)});
      session.keep("memory", {{"case", c.name},
                              {"pattern", text},
                              {"operation", to_string(operation)},
                              {"check", "ok"},
                              {"heads", c.heads},
                              {"head_dim", c.head_dim},
                              {"dtype", to_string(c.dtype)},
                              {"lengths", {first, last}},
                              {"extra_bytes", extra},
                              {"tensor_bytes", tensors},
                              {"score_bytes", scores}});
    }
  }
  session.print(fmt::format(
      "\nmemory: {}, peak of the first call besides its tensors, plan included; a call that "
      "stored scores\nwould need {:.0f} times as much at {:.0f} times the length\n",
      session.conditions(range.dtype), ratio * ratio, ratio));
  session.print(table);
}

}  // namespace keyhole::bench
