// cli/bench/check.cpp
// Takes a case with its plan and tensors, says whether the kernel's answer is the reference's.
#include "cli/bench/check.h"

#include <algorithm>
#include <set>
#include <vector>

#include "cli/check/judge.h"
#include "cli/device.h"

namespace keyhole::bench {
namespace {

// The first and the last row and others between, always the same ones.
std::vector<int64_t> choose_rows(const Case& c, const CheckEffort& effort) {
  std::vector<int64_t> rows;
  if (c.q_len <= effort.all_rows_up_to) {
    for (int64_t row = 0; row < c.q_len; ++row) rows.push_back(row);
    return rows;
  }
  const int64_t wanted =
      std::clamp(effort.sampled_keys / (c.k_len * c.heads), effort.min_rows, effort.max_rows);
  std::set<int64_t> chosen = {0, c.q_len - 1};
  for (uint64_t x = 1; int64_t(chosen.size()) < std::min(wanted, c.q_len);) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    chosen.insert(int64_t((x >> 33) % uint64_t(c.q_len)));
  }
  return {chosen.begin(), chosen.end()};
}

// Zero but in the chosen rows.
void keep_rows(const Tensor& tensor, const std::vector<int64_t>& rows) {
  const TensorView& view = tensor.host();
  const int64_t row_bytes = view.shape[3] * bytes_of(view.dtype);
  std::vector<bool> is_chosen(static_cast<size_t>(view.shape[2]));
  for (int64_t row : rows) is_chosen[size_t(row)] = true;
  auto* data = static_cast<std::byte*>(view.data);
  for (int64_t i = 0; i < view.shape[1] * view.shape[2]; ++i) {
    if (!is_chosen[size_t(i % view.shape[2])]) {
      std::fill_n(data + i * row_bytes, row_bytes, std::byte{0});
    }
  }
  tensor.send();
}

}  // namespace

Choice choice_for(const Case& c, Operation operation, const Lists& lists,
                  const AttentionOptions& options) {
  Request request = cli::request_for(c.device, operation, c.dtype, c.head_dim, c.head_dim);
  request.backend = options.backend;
  request.normalizer = c.normalizer;
  request.deterministic = options.deterministic;
  request.shares_kv_heads = c.heads != c.kv_heads;
  return cli::choice_for(request, lists);
}

CheckResult check(const Case& c, const Lists& lists, Inputs& inputs, const CheckEffort& effort,
                  const AttentionOptions& options) {
  const std::vector<int64_t> rows = choose_rows(c, effort);
  const auto kernel_of = [&](Operation operation) -> const KernelEntry& {
    return *choice_for(c, operation, lists, options).kernel;
  };
  cli::Answer answer{.pattern = c.pattern,
                     .q = inputs.q.host(),
                     .k = inputs.k.host(),
                     .v = inputs.v.host(),
                     .out = inputs.out.host(),
                     .lse = inputs.lse.host(),
                     .dout = inputs.dout.host(),
                     .dq = inputs.dq.host(),
                     .dk = inputs.dk.host(),
                     .dv = inputs.dv.host(),
                     .options = options};
  inputs.out.fill_nan();
  inputs.lse.fill_nan();
  inputs.run_forward(lists, options);
  inputs.out.bring_back();
  inputs.lse.bring_back();
  // A row that no sample meets must at least have been written, with numbers.
  cli::Finding worst = cli::judge_written("out", answer.out, options.threads);
  worst.take(cli::judge_forward(kernel_of(Operation::forward), answer, rows));

  if (c.operation == Operation::backward) {
    keep_rows(inputs.dout, rows);
    for (Tensor* gradient : {&inputs.dq, &inputs.dk, &inputs.dv}) gradient->fill_nan();
    inputs.run_backward(lists, options);
    for (const Tensor* gradient : {&inputs.dq, &inputs.dk, &inputs.dv}) gradient->bring_back();
    worst.take(cli::judge_written("dq", answer.dq, options.threads));
    worst.take(cli::judge_backward(kernel_of(Operation::backward), answer, rows));
    inputs.dout.fill_normal(4);
  }
  return {.is_passed = worst.complaint.empty(),
          .rows = int64_t(rows.size()),
          .is_sampled = int64_t(rows.size()) < c.q_len,
          .worst = worst.ratio(),
          .complaint = worst.complaint};
}

}  // namespace keyhole::bench
