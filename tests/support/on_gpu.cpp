// tests/support/on_gpu.cpp
#include "support/on_gpu.h"

#include <algorithm>
#include <cmath>

#include "runtime/dispatch.h"
#include "runtime/gpu.h"
#include "runtime/registry.h"
#include "support/gpu_copies.h"

namespace keyhole::test {
namespace {

constexpr Device kGpu{Device::Kind::cuda, 0};

Request request_of(Operation operation, const Case& c, bool aligned) {
  return {.backend = "auto",
          .operation = operation,
          .dtype = c.dtype,
          .head_dim = c.head_dim,
          .v_head_dim = c.v_head_dim,
          .device = kGpu,
          .compute_capability = gpu(kGpu).compute_capability,
          .shared_bytes = gpu(kGpu).shared_bytes,
          .has_softcap = c.softcap > 0,
          .is_aligned = aligned};
}

struct Chosen {
  const KernelEntry* kernel;
  TileShape tile;
};
Chosen kernel_or_next(const KernelEntry& wanted, const Plan& plan, TileShape tile, const Case& c,
                      bool aligned) {
  const Request request = request_of(wanted.operation, c, aligned);
  const KernelEntry& kernel =
      refusal(wanted, request).empty() ? wanted : choose(kernel_table(), request);
  const bool has_tile =
      std::find(kernel.tiles.begin(), kernel.tiles.end(), tile) != kernel.tiles.end();
  const bool has_heads = c.batch * c.heads > 0;
  return {&kernel, has_tile ? tile : !has_heads ? kernel.tiles.front() : pick_tile(kernel, plan)};
}

double scale_of(const Case& c) { return c.scale.value_or(1 / std::sqrt(double(c.head_dim))); }

}  // namespace

bool accepts(const KernelEntry& kernel, const Case& c, const Inputs& in, const Outputs& o) {
  const bool is_forward = kernel.operation == Operation::forward;
  const bool aligned =
      rows_are_aligned({&in.q.view(), &in.k.view(), &in.v.view(), &o.out.view()}) &&
      (is_forward || rows_are_aligned({&in.dout.view(), &o.dq.view(), &o.dk.view(), &o.dv.view()}));
  return refusal(kernel, request_of(kernel.operation, c, aligned)).empty();
}

std::string forward_on_gpu(const KernelEntry& wanted, const Plan& plan, TileShape tile,
                           const Case& c, const Inputs& in, Outputs& o) {
  GpuCopies copies;
  ForwardArgs args;
  args.q = copies.input(in.q), args.k = copies.input(in.k), args.v = copies.input(in.v);
  args.out = copies.output(o.out), args.lse = copies.output(o.lse);
  args.scale = scale_of(c), args.softcap = c.softcap;
  if (c.has_sink) args.sink = copies.input(in.sink);
  const bool aligned = rows_are_aligned({&args.q, &args.k, &args.v, &args.out});
  const auto [kernel, chosen_tile] = kernel_or_next(wanted, plan, tile, c, aligned);
  const int64_t bytes = forward_workspace_on_gpu(*kernel, plan, chosen_tile, args);
  args.launch.workspace = copies.workspace(bytes), args.launch.workspace_bytes = bytes;
  run_forward(*kernel, plan, chosen_tile, args);
  return copies.finish();
}

std::string backward_on_gpu(const KernelEntry& wanted, const Plan& plan, TileShape tile,
                            const Case& c, const Inputs& in, Outputs& o, bool is_deterministic) {
  GpuCopies copies;
  BackwardArgs args;
  args.dout = copies.input(in.dout), args.q = copies.input(in.q), args.k = copies.input(in.k);
  args.v = copies.input(in.v), args.out = copies.input(o.out), args.lse = copies.input(o.lse);
  args.dq = copies.output(o.dq), args.dk = copies.output(o.dk), args.dv = copies.output(o.dv);
  if (c.has_sink) args.sink = copies.input(in.sink), args.dsink = copies.output(o.dsink);
  args.scale = scale_of(c), args.softcap = c.softcap;
  args.deterministic = is_deterministic;
  const bool aligned = rows_are_aligned(
      {&args.dout, &args.q, &args.k, &args.v, &args.out, &args.dq, &args.dk, &args.dv});
  const auto [kernel, chosen_tile] = kernel_or_next(wanted, plan, tile, c, aligned);
  const int64_t bytes = backward_workspace_on_gpu(*kernel, plan, chosen_tile, args);
  args.launch.workspace = copies.workspace(bytes), args.launch.workspace_bytes = bytes;
  run_backward(*kernel, plan, chosen_tile, args);
  return copies.finish();
}

}  // namespace keyhole::test
