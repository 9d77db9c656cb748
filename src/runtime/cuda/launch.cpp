// src/runtime/cuda/launch.cpp
// One call on a GPU: the plan's lists are there or copied there, scratch memory is brought, and the
// kernel's launches are queued.
#include "base/check.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/gpu_context.h"
#include "kernels/device/merge.h"
#include "plan/plan_state.h"
#include "runtime/cuda/call.h"
#include "runtime/cuda/upload.h"
#include "runtime/gpu.h"

namespace keyhole {
namespace {

struct Call {
  std::shared_ptr<UploadedPlan> plan;
  cudaStream_t stream;
};

// Query heads that share keys, and so stay together in a section; a backward pass reads queries
// again and again, which no two heads share.
int32_t heads_to_keep(const ForwardArgs& args) {
  return int32_t(args.q.shape[1] / args.k.shape[1]);
}
int32_t heads_to_keep(const BackwardArgs&) { return 1; }

// How work is dealt out for a kernel whose CTAs stay.
template <class Args>
PersistentCtas ctas_of(const KernelEntry& kernel, TileShape tile, const Args& args) {
  if (kernel.persistence == nullptr || args.q.shape[0] * args.q.shape[1] == 0) return {};
  const Persistence persistence = kernel.persistence(tile);
  if (persistence.ctas_per_processor == 0) return {};
  KEYHOLE_ASSERT(persistence.cache_share > 0, kernel.name, " does not say how large a section is");
  return {.num_ctas = persistence.ctas_per_processor * args.launch.num_processors,
          .heads_per_section = device::heads_per_section(args, persistence.cache_share),
          .heads_per_kv_head = heads_to_keep(args),
          .tiles_per_item = persistence.tiles_per_item};
}

template <class Args>
Call prepare(const KernelEntry& kernel, const Plan& plan, TileShape tile, bool is_backward,
             bool is_deterministic, Args& args) {
  const cudaStream_t stream = static_cast<cudaStream_t>(args.launch.stream);
  describe_gpu(args.q.device, args.launch);
  const UploadKey key{
      .ordinal = args.q.device.ordinal,
      .context = device::current_context(),
      .tile = tile,
      .target = {.layout = kernel.bitmaps,
                 .num_heads = args.q.shape[0] * args.q.shape[1],
                 .with_transposed = is_backward,
                 // Query heads that share a kv head are added up list by list, in order.
                 .may_split_transposed = !is_deterministic || args.q.shape[1] == args.k.shape[1],
                 .num_processors = args.launch.num_processors,
                 .ctas = ctas_of(kernel, tile, args)}};
  Call call{uploaded(plan, key, stream), stream};
  args.plan = call.plan->view();
  return call;
}

// Also where one of several launches fails: those queued before it still read the plan.
void use_plan(const Call& call, auto launch) {
  try {
    launch();
  } catch (...) {
    try {
      call.plan->was_used_on(call.stream);
    } catch (const Error&) {  // the first error says more
    }
    throw;
  }
  call.plan->was_used_on(call.stream);
}

}  // namespace

int64_t forward_workspace_on_gpu(const KernelEntry& kernel, const Plan& plan, TileShape tile,
                                 ForwardArgs args) {
  const OnGpu here(args.q.device.ordinal);
  prepare(kernel, plan, tile, /*is_backward=*/false, /*is_deterministic=*/true, args);
  return kernel.forward_workspace != nullptr ? kernel.forward_workspace(args) : 0;
}

int64_t backward_workspace_on_gpu(const KernelEntry& kernel, const Plan& plan, TileShape tile,
                                  BackwardArgs args) {
  const OnGpu here(args.q.device.ordinal);
  prepare(kernel, plan, tile, /*is_backward=*/true, args.deterministic, args);
  return kernel.backward_workspace != nullptr ? kernel.backward_workspace(args) : 0;
}

void run_forward_on_gpu(const KernelEntry& kernel, const Plan& plan, TileShape tile,
                        ForwardArgs args) {
  const OnGpu here(args.q.device.ordinal);
  forget_old_errors();
  const Call call = prepare(kernel, plan, tile, /*is_backward=*/false, true, args);
  const int64_t bytes = kernel.forward_workspace != nullptr ? kernel.forward_workspace(args) : 0;
  use_plan(call,
           [&] { with_workspace(args.launch, bytes, call.stream, [&] { kernel.forward(args); }); });
}

void run_backward_on_gpu(const KernelEntry& kernel, const Plan& plan, TileShape tile,
                         BackwardArgs args) {
  const OnGpu here(args.q.device.ordinal);
  forget_old_errors();
  const Call call = prepare(kernel, plan, tile, /*is_backward=*/true, args.deterministic, args);
  const int64_t bytes = kernel.backward_workspace != nullptr ? kernel.backward_workspace(args) : 0;
  use_plan(call, [&] {
    with_workspace(args.launch, bytes, call.stream, [&] { kernel.backward(args); });
  });
}

void merge_on_gpu(const TensorView& into_out, const TensorView& into_lse,
                  const TensorView& from_out, const TensorView& from_lse, void* stream) {
  gpu(into_out.device);  // refuses one that is not there
  const OnGpu here(into_out.device.ordinal);
  forget_old_errors();
  device::launch_merge(into_out, into_lse, from_out, from_lse, static_cast<cudaStream_t>(stream));
}

}  // namespace keyhole
