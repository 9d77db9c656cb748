// cli/bench/check.cpp
// Takes a case with its plan and tensors, says whether the kernel's answer is the reference's.
#include <algorithm>
#include <vector>

#include "cli/bench/measure.h"
#include "cli/options.h"
#include "judge/judge.h"

namespace keyhole::bench {

Choice choice_for(const Case& c, Operation operation, const Lists& lists,
                  const AttentionOptions& options) {
  Request request = request_for(c.device, operation, c.dtype, c.head_dim, c.head_dim);
  request.backend = options.backend;
  request.normalizer = c.normalizer;
  request.deterministic = options.deterministic;
  request.shares_kv_heads = c.heads != c.kv_heads;
  return cli::choice_for(request, lists);
}

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

}  // namespace keyhole::bench
