// cli/bench/measure.cpp
// Takes a case, compiles and checks it; gives the call to time and what a record says of it.
#include "cli/bench/measure.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/gpu/measure.h"
#include "cli/options.h"
#include "judge/judge.h"
#include "keyhole/attention.h"
#include "plan/estimate.h"
#include "runtime/list_facts.h"
#include "runtime/registry.h"

namespace keyhole::bench {
namespace {

// The plan, with the time it took. Tile lists follow on first use; the check is that use.
Plan timed_plan(const Case& c, double& plan_ms) {
  const double begin = now_s();
  Plan made = plan(c.pattern, c.shape());
  plan_ms = 1e3 * (now_s() - begin);
  return made;
}

// What a pass of a case runs.
Choice choice_for(const Case& c, Operation operation, const Lists& lists,
                  const AttentionOptions& options) {
  Request request = request_for(c.device, operation, c.dtype, c.head_dim, c.head_dim);
  request.backend = options.backend;
  request.normalizer = c.normalizer;
  request.deterministic = options.deterministic;
  request.shares_kv_heads = c.heads != c.kv_heads;
  return cli::choice_for(request, lists);
}

// No query sees a later key; asked of a sample of the queries.
bool is_causal(const Case& c) {
  const int64_t num_rows = std::min<int64_t>(c.q_len, 32);
  for (int64_t head = 0; head < c.heads; ++head) {
    const HeadPattern pattern = c.pattern.for_head(c.shape(), 0, head);
    for (int64_t i = 0; i < num_rows; ++i) {
      const int64_t row = i * c.q_len / num_rows;
      for (int64_t key = row + c.shape().q_offset() + 1; key < c.k_len; ++key) {
        if (pattern.allows(row, key)) return false;
      }
    }
  }
  return true;
}

}  // namespace

CheckResult check(const Case& c, const Lists& lists, Inputs& inputs, const CheckEffort& effort,
                  const AttentionOptions& options) {
  const int64_t wanted =
      std::clamp(effort.sampled_keys / (c.k_len * c.heads), effort.min_rows, effort.max_rows);
  // Always the same ones.
  const std::vector<int64_t> rows =
      judge::rows_to_check(c.q_len, effort.all_rows_up_to, wanted, /*seed=*/1);
  const auto kernel_of = [&](Operation operation) -> const KernelEntry& {
    return *choice_for(c, operation, lists, options).kernel;
  };
  const judge::Answer answer{inputs.host(), c.pattern, options};
  inputs.out.fill_nan();
  inputs.lse.fill_nan();
  inputs.run_forward(lists, options);
  inputs.out.bring_back();
  inputs.lse.bring_back();
  // A row that no sample meets must at least have been written, with numbers.
  judge::Finding worst = judge::judge_written("out", answer.out, options.threads);
  worst.take(judge::judge_forward(kernel_of(Operation::forward), answer, rows));

  if (c.operation == Operation::backward) {
    inputs.dout.keep_rows(rows);
    for (Tensor* gradient : {&inputs.dq, &inputs.dk, &inputs.dv}) gradient->fill_nan();
    inputs.run_backward(lists, options);
    for (const Tensor* gradient : {&inputs.dq, &inputs.dk, &inputs.dv}) gradient->bring_back();
    worst.take(judge::judge_written("dq", answer.dq, options.threads));
    worst.take(judge::judge_backward(kernel_of(Operation::backward), answer, rows));
    inputs.dout.fill_normal(4);
  }
  return {.is_passed = worst.complaint.empty(),
          .rows = int64_t(rows.size()),
          .is_sampled = int64_t(rows.size()) < c.q_len,
          .worst = worst.ratio(),
          .complaint = worst.complaint};
}

Subject::Subject(const Case& c, std::shared_ptr<Inputs> inputs, const Effort& effort)
    : case_(c), inputs_(std::move(inputs)), effort_(effort), plan_(timed_plan(c, plan_ms_)) {
  effort_.options.normalizer = c.normalizer;
  if (c.is_sparse()) {
    support_ = std::make_shared<SupportKeys>(c);
    effort_.options.support = support_->view();
  }
  if (!effort.indices.empty())
    indices_ = std::make_shared<KeyIndices>(c, plan_, effort.indices == "int64");
  Choice choice = choice_for(c, c.operation, lists(), effort_.options);
  const KernelEntry& kernel = *choice.kernel;
  const bool is_on_gpu = cli::is_gpu(c.device);
  std::optional<MemoryWatch> watch;
  if (is_on_gpu) watch.emplace(c.device);
  check_ = check(c, lists(), *inputs_, effort.check, effort_.options);
  if (is_on_gpu) {
    extra_bytes_ = watch->extra_bytes();
    choice.workspace_bytes = workspace_bytes();
    workspace_ = std::make_shared<GpuMemory>(c.device, choice.workspace_bytes);
  }
  kernel_ = kernel.name;
  runs_ = to_string(choice);
  report_ = plan_.explain(choice.tile, c.head_dim, bytes_of(c.dtype));
  plan_ms_ += report_.compile_ms;
}

int64_t Subject::workspace_bytes() const {
  int64_t bytes = 0;
  const Inputs& in = *inputs_;
  if (case_.does_forward()) {
    bytes = forward_workspace_bytes(in.q, in.k, in.v, lists(), in.out, in.lse, effort_.options);
  }
  if (case_.does_backward()) {
    bytes =
        std::max(bytes, backward_workspace_bytes(in.dout, in.q, in.k, in.v, in.out, in.lse, lists(),
                                                 {in.dq, in.dk, in.dv, {}}, effort_.options));
  }
  return bytes;
}

double Subject::gathered_bytes() const {
  const bool is_gathered =
      !report_.parts.empty() && std::ranges::all_of(report_.parts, [](const PartReport& part) {
        return part.form == "gather";
      });
  const double pairs_of_head = double(report_.pairs) / double(case_.heads);
  const double row_bytes = double(case_.head_dim * bytes_of(case_.dtype));
  return is_gathered ? pairs_of_head * double(case_.kv_heads) * 2 * row_bytes : 0;
}

std::function<void()> Subject::call() const {
  AttentionOptions options = effort_.options;
  if (workspace_) options.workspace = {workspace_->data(), workspace_->bytes()};
  return [inputs = inputs_, lists = lists(), options, indices = indices_, support = support_,
          workspace = workspace_, does_forward = case_.does_forward(),
          does_backward = case_.does_backward()] {
    if (does_forward) inputs->run_forward(lists, options);
    if (does_backward) inputs->run_backward(lists, options);
  };
}

Case dense_twin(const Case& c) {
  return is_causal(c) ? with_pattern(c, causal(), "causal") : with_pattern(c, dense(), "dense");
}

nlohmann::json to_json(const Timing& timing) {
  return {{"median", timing.median_ms},
          {"p10", timing.p10_ms},
          {"p90", timing.p90_ms},
          {"min", timing.min_ms},
          {"runs", timing.runs}};
}

nlohmann::json to_json(const Subject& subject, const Timing& timing) {
  const Case& c = subject.subject_case();
  const PlanReport& report = subject.report();
  const CheckResult& result = subject.check_result();
  nlohmann::json json = {
      {"case", c.name},
      {"operation", passes_text(c)},
      {"kernel", subject.kernel()},
      {"runs", subject.runs()},
      {"check", result.is_passed ? "ok" : "failed"},
      {"checked_rows", result.rows},
      {"check_worst", result.worst},
      {"pattern", c.pattern_text},
      {"q_len", c.q_len},
      {"k_len", c.k_len},
      {"heads", c.heads},
      {"kv_heads", c.kv_heads},
      {"head_dim", c.head_dim},
      {"dtype", to_string(c.dtype)},
      {"tile", to_string(report.tile)},
      {"pairs", report.pairs},
      {"visited_pairs", report.visited_pairs},
      {"kept_share", double(report.pairs) / c.all_pairs()},
      {"kept_tiles", kept_tiles(c)},
      {"visited_share", double(report.visited_pairs) / c.all_pairs()},
      {"keys_per_query", double(report.pairs) / double(c.heads * c.q_len)},
      {"flops_per_token", flops_per_pair(c) * double(report.pairs) / double(c.q_len)},
      {"gflops", flops_per_pair(c) * double(report.pairs) / (timing.median_ms * 1e6)},
      {"plan_ms", subject.plan_ms()},
      {"ms", to_json(timing)}};
  const Effort& effort = subject.effort();
  if (c.is_sparse()) json["normalizer"] = to_string(c.normalizer);
  if (effort.options.backend != "auto") json["backend"] = effort.options.backend;
  if (effort.options.deterministic) json["deterministic"] = true;
  if (!effort.indices.empty()) json["indices"] = effort.indices;
  if (const double bytes = subject.gathered_bytes(); bytes > 0) {
    json["gathered_gbps"] = bytes / (timing.median_ms * 1e6);
  }
  if (cli::is_gpu(c.device)) {
    json["tensor_bytes"] = subject.tensor_bytes();
    json["extra_bytes"] = subject.extra_bytes();
    json["gbps"] = double(subject.tensor_bytes()) / (timing.median_ms * 1e6);
  }
  return json;
}

TileShape dense_tile(const Case& c) {
  const Request request = request_for(c.device, c.operation, c.dtype, c.head_dim, c.head_dim);
  return choose(kernel_table(), request).tiles.front();
}

double kept_tiles(const Case& c) {
  const Shape shape = c.shape();
  return count_tiles(c.pattern, shape, dense_tile(c)) / double(shape.batch * shape.heads);
}

DenseTwin dense_twin_of(const Subject& subject, const Timing& timing) {
  return {.pattern_text = subject.subject_case().pattern_text,
          .timing = timing,
          .pairs = double(subject.report().pairs),
          .visited_pairs = double(subject.report().visited_pairs),
          .tiles = kept_tiles(subject.subject_case())};
}

void add_dense(nlohmann::json& record, const DenseTwin& twin) {
  record["dense_pattern"] = twin.pattern_text;
  record["dense_pairs"] = twin.pairs;
  record["dense_visited_pairs"] = twin.visited_pairs;
  record["dense_is_measured"] = twin.is_measured;
  record["dense_ms"] =
      twin.is_measured ? to_json(twin.timing) : nlohmann::json{{"median", twin.timing.median_ms}};
  const double speedup = twin.timing.median_ms / record["ms"]["median"].get<double>();
  record["speedup"] = speedup;
  record["times_tiles"] = twin.tiles / (speedup * record["kept_tiles"].get<double>());
  record["times_visited"] = twin.visited_pairs / (speedup * record["visited_pairs"].get<double>());
}

}  // namespace keyhole::bench
