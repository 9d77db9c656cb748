// tests/support/on_gpu.cpp
#include "support/on_gpu.h"

#include <algorithm>

#include "runtime/dispatch.h"
#include "runtime/gpu.h"
#include "runtime/list_facts.h"
#include "runtime/registry.h"
#include "support/gpu_copies.h"

namespace keyhole::test {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

std::string why_no_tma(const CallTensors& t, Operation operation) {
  if (operation == Operation::forward) return keyhole::why_no_tma({&t.q, &t.k, &t.v, &t.out});
  return keyhole::why_no_tma({&t.dout, &t.q, &t.k, &t.v, &t.out, &t.dq, &t.dk, &t.dv});
}

bool is_aligned(const CallTensors& t, Operation operation) {
  return rows_are_aligned({&t.q, &t.k, &t.v, &t.out}) &&
         (operation == Operation::forward || rows_are_aligned({&t.dout, &t.dq, &t.dk, &t.dv}));
}

Request request_of(Operation operation, const Case& c, const CallTensors& tensors,
                   int64_t shared_bytes) {
  Request request = request_for(kGpu, operation, c.dtype, c.head_dim, c.v_head_dim);
  if (shared_bytes != 0) request.shared_bytes = shared_bytes;
  request.normalizer = c.normalizer;
  request.has_softcap = c.softcap > 0;
  request.is_aligned = is_aligned(tensors, operation);
  request.why_no_tma = why_no_tma(tensors, operation);
  return request;
}

// Contiguous, as `support` of forward_on_gpu and backward_on_gpu.
SupportRows support_rows(const Case& c, int32_t* keys) {
  const int64_t row = kSupportKeys, head = row * c.q_len;
  return {keys, head * c.heads, head, row};
}

}  // namespace

const KernelEntry& kernel_or_next(const KernelEntry& wanted, const Case& c, const Plan& plan,
                                  const CallTensors& tensors, int64_t shared_bytes,
                                  bool is_deterministic) {
  const PlanFacts facts(plan);
  Request request = request_of(wanted.operation, c, tensors, shared_bytes);
  request.deterministic = is_deterministic;
  request.shares_kv_heads = c.heads != c.kv_heads;
  request.lists = &facts;
  if (refusal(wanted, request).empty()) return wanted;
  // The next of its own backend, where there is one: which backend `choose` takes may depend on how
  // tensors lie, and results are compared bit by bit across layouts.
  const auto takes_it = [&](const KernelEntry& kernel) {
    return kernel.backend == wanted.backend && refusal(kernel, request).empty();
  };
  const auto own = std::ranges::find_if(kernel_table(), takes_it);
  return own != kernel_table().end() ? *own : choose(kernel_table(), request);
}

std::string why_refused(const KernelEntry& kernel, const Case& c, const CallTensors& tensors,
                        int64_t shared_bytes) {
  return refusal(kernel, request_of(kernel.operation, c, tensors, shared_bytes));
}

ForwardArgs forward_args_of(const Case& c, const CallTensors& t, int64_t shared_bytes) {
  ForwardArgs args = judge::forward_args(t, c.rule());
  args.launch.shared_bytes = shared_bytes;
  return args;
}

BackwardArgs backward_args_of(const Case& c, const CallTensors& t, int64_t shared_bytes) {
  BackwardArgs args = judge::backward_args(t, c.rule());
  args.launch.shared_bytes = shared_bytes;
  return args;
}

TileShape tile_for(const KernelEntry& kernel, const Plan& plan, TileShape tile, const Case& c) {
  if (std::find(kernel.tiles.begin(), kernel.tiles.end(), tile) != kernel.tiles.end()) return tile;
  return c.batch * c.heads == 0 ? kernel.tiles.front() : pick_tile(kernel, plan);
}

std::string forward_on_gpu(const KernelChoice& choice, const Plan& plan, const Case& c,
                           const Inputs& in, Outputs& o, std::vector<int32_t>* support) {
  GpuCopies copies;
  CallTensors tensors;
  tensors.q = copies.input(in.q), tensors.k = copies.input(in.k), tensors.v = copies.input(in.v);
  tensors.out = copies.output(o.out), tensors.lse = copies.output(o.lse);
  if (c.has_sink) tensors.sink = copies.input(in.sink);
  const KernelEntry& kernel = kernel_or_next(*choice.forward, c, plan, tensors, choice.shared_bytes,
                                             /*is_deterministic=*/false);
  const TileShape tile = tile_for(kernel, plan, choice.tile, c);
  ForwardArgs args = forward_args_of(c, tensors, choice.shared_bytes);
  if (support != nullptr) args.support = support_rows(c, copies.integers(*support));
  const int64_t bytes = forward_workspace_on_gpu(kernel, plan, tile, args);
  args.launch.workspace = copies.workspace(bytes), args.launch.workspace_bytes = bytes;
  run_forward(kernel, plan, tile, args);
  return copies.finish();
}

std::string backward_on_gpu(const KernelChoice& choice, const Plan& plan, const Case& c,
                            const Inputs& in, Outputs& o, std::vector<int32_t>* support) {
  GpuCopies copies;
  CallTensors tensors;
  tensors.dout = copies.input(in.dout), tensors.q = copies.input(in.q);
  tensors.k = copies.input(in.k), tensors.v = copies.input(in.v);
  tensors.out = copies.input(o.out), tensors.lse = copies.input(o.lse);
  tensors.dq = copies.output(o.dq), tensors.dk = copies.output(o.dk);
  tensors.dv = copies.output(o.dv);
  if (c.has_sink) tensors.sink = copies.input(in.sink), tensors.dsink = copies.output(o.dsink);
  const KernelEntry& kernel = kernel_or_next(*choice.backward, c, plan, tensors,
                                             choice.shared_bytes, choice.is_deterministic);
  const TileShape tile = tile_for(kernel, plan, choice.tile, c);
  BackwardArgs args = backward_args_of(c, tensors, choice.shared_bytes);
  if (support != nullptr) args.support = support_rows(c, copies.integers(*support));
  args.schedule = schedule_of(kernel, plan, tile, args, choice.is_deterministic);
  const int64_t bytes = backward_workspace_on_gpu(kernel, plan, tile, args);
  args.launch.workspace = copies.workspace(bytes), args.launch.workspace_bytes = bytes;
  run_backward(kernel, plan, tile, args);
  return copies.finish();
}

}  // namespace keyhole::test
