// src/api/attention.cpp
// The public functions: check the arguments once, choose a kernel, run it.
#include "keyhole/attention.h"

#include <algorithm>

#include "api/check_arguments.h"
#include "api/prepare.h"
#include "runtime/gpu.h"

namespace keyhole {

void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                       const Plan& plan, const TensorView& out, const TensorView& lse,
                       const AttentionOptions& options) {
  check_forward(q, k, v, out, lse, options);
  check_plan(plan, q, k);
  const KernelEntry& kernel = choose_for(Operation::forward, q, v, options, {&q, &k, &v, &out});
  const ForwardArgs args = forward_args_of(q, k, v, out, lse, options);
  run_forward(kernel, plan, pick_tile(kernel, plan), args);
}

void attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& out, const TensorView& lse,
                        const Plan& plan, const Gradients& gradients,
                        const AttentionOptions& options) {
  check_backward(dout, q, k, v, out, lse, gradients, options);
  check_plan(plan, q, k);
  const KernelEntry& kernel = choose_for_backward(dout, q, k, v, out, gradients, options);
  const BackwardArgs args = backward_args_of(dout, q, k, v, out, lse, gradients, options);
  run_backward(kernel, plan, pick_tile(kernel, plan), args);
}

int64_t forward_workspace_bytes(const TensorView& q, const TensorView& k, const TensorView& v,
                                const Plan& plan, const AttentionOptions& options) {
  if (q.device.kind == Device::Kind::cpu) return 0;
  const KernelEntry& kernel = choose_for(Operation::forward, q, v, options, {&q, &k, &v});
  return forward_workspace_on_gpu(kernel, plan, pick_tile(kernel, plan),
                                  args_of<ForwardArgs>(q, k, v, options));
}

int64_t backward_workspace_bytes(const TensorView& q, const TensorView& k, const TensorView& v,
                                 const Plan& plan, const AttentionOptions& options) {
  if (q.device.kind == Device::Kind::cpu) return 0;
  auto args = args_of<BackwardArgs>(q, k, v, options);
  args.deterministic = options.deterministic;
  const auto bytes_for = [&](const Request& request) {
    const KernelEntry& kernel = choose(kernel_table(), request);
    return backward_workspace_on_gpu(kernel, plan, pick_tile(kernel, plan), args);
  };
  Request request = request_for(Operation::backward, q, v, options, {&q, &k, &v});
  const int64_t bytes = bytes_for(request);
  if (!request.why_no_boxes.empty() || options.backend != "auto") return bytes;
  // Where TMA cannot follow the gradient of the output, another kernel will run.
  request.why_no_boxes = "dout is not known yet";
  return std::max(bytes, bytes_for(request));
}

std::string kernel_for_forward(const TensorView& q, const TensorView& v, const Plan& plan,
                               const AttentionOptions& options) {
  const KernelEntry& kernel = choose_for(Operation::forward, q, v, options, {&q, &v});
  return kernel.name + " with tile " + to_string(pick_tile(kernel, plan));
}

}  // namespace keyhole
