// src/runtime/cuda/launch.cpp
// One call on a GPU: prepares its lists (in place, copied, or made on the device), provides scratch
// memory, and queues the kernel's launches.
#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/int_math.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/cut_lists.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/gpu_context.h"
#include "kernels/device/merge.h"
#include "plan/plan_state.h"
#include "runtime/cuda/call.h"
#include "runtime/cuda/upload.h"
#include "runtime/gpu.h"

namespace keyhole {
namespace {

// Query heads that share keys stay together in a section. A backward pass reads queries repeatedly,
// and no two heads share those.
int32_t heads_to_keep(const ForwardArgs& args) {
  return int32_t(args.q.shape[1] / args.k.shape[1]);
}
int32_t heads_to_keep(const BackwardArgs&) { return 1; }

bool is_backward(const ForwardArgs&) { return false; }
bool is_backward(const BackwardArgs&) { return true; }
bool splits_lists(const ForwardArgs&) { return true; }
bool splits_lists(const BackwardArgs& args) { return args.schedule.splits_lists; }

bool draws_items(const ForwardArgs&) { return false; }
bool draws_items(const BackwardArgs& args) { return args.schedule.dq == DqOrder::by_turns; }
// For how many processors lists are split: in a fixed order, the same on every GPU.
constexpr int kProcessorsInOrder = 128;
// Key tiles of one head are added one after another. With so many heads at a time, few CTAs wait
// for each other; of the widest heads, so many would leave the cache. Measured, not derived.
int64_t heads_in_order(int64_t head_dim) { return head_dim > 192 ? 8 : 16; }
template <class Args>
int heads_per_section(const Args& args, double cache_share) {
  const int heads = device::heads_per_section(args, cache_share);
  if (!draws_items(args)) return heads;
  const int64_t all = args.q.shape[0] * args.q.shape[1];
  return std::max(heads, int(std::min(heads_in_order(args.q.shape[3]), all)));
}
template <class Args>
int num_processors(const Args& args) {
  return draws_items(args) ? kProcessorsInOrder : args.launch.num_processors;
}

int64_t workspace_of(const KernelEntry& kernel, const ForwardArgs& args) {
  return kernel.forward_workspace != nullptr ? kernel.forward_workspace(args) : 0;
}
int64_t workspace_of(const KernelEntry& kernel, const BackwardArgs& args) {
  return kernel.backward_workspace != nullptr ? kernel.backward_workspace(args) : 0;
}
void run(const KernelEntry& kernel, const ForwardArgs& args) { kernel.forward(args); }
void run(const KernelEntry& kernel, const BackwardArgs& args) { kernel.backward(args); }

// How work is assigned for a persistent kernel.
template <class Args>
PersistentCtas ctas_of(const KernelEntry& kernel, TileShape tile, const Args& args) {
  if (kernel.persistence == nullptr || args.q.shape[0] * args.q.shape[1] == 0) return {};
  const Persistence persistence = kernel.persistence(tile);
  if (persistence.ctas_per_processor == 0) return {};
  KEYHOLE_ASSERT(persistence.cache_share > 0, kernel.name, " does not say how large a section is");
  return {.num_ctas = persistence.ctas_per_processor * args.launch.num_processors,
          .heads_per_section = heads_per_section(args, persistence.cache_share),
          .heads_per_kv_head = heads_to_keep(args),
          .tiles_per_item = persistence.tiles_per_item,
          .in_list_order = draws_items(args)};
}

// The lists of one call on the GPU: a view and, while the call is queued, the memory it points to.
// Some are made in the scratch memory of the call, after that of the kernel.
class DeviceLists {
 public:
  virtual ~DeviceLists() = default;
  DeviceLists() = default;
  DeviceLists(const DeviceLists&) = delete;
  DeviceLists& operator=(const DeviceLists&) = delete;

  virtual PlanView view() const = 0;
  virtual int64_t bytes() const { return 0; }  // of scratch memory
  virtual void make(void* /*memory*/, cudaStream_t /*stream*/) {}
  // Called after the launches that read them were queued.
  virtual void was_used_on(cudaStream_t /*stream*/) {}
};

class NoLists final : public DeviceLists {
 public:
  PlanView view() const override { return {}; }
};

// Copied once and kept with the plan.
class ListsOfPlan final : public DeviceLists {
 public:
  template <class Args>
  ListsOfPlan(const Plan& plan, const KernelEntry& kernel, TileShape tile, const Args& args)
      : uploaded_(
            uploaded(plan,
                     {.ordinal = args.q.device.ordinal,
                      .context = device::current_context(),
                      .tile = tile,
                      .target = {.layout = kernel.bitmaps,
                                 .num_heads = args.q.shape[0] * args.q.shape[1],
                                 .with_transposed = is_backward(args),
                                 .may_split = facts_of(args.rule.normalizer).statistics_add_up,
                                 .may_split_transposed = splits_lists(args),
                                 .num_processors = num_processors(args),
                                 .ctas = ctas_of(kernel, tile, args)}},
                     static_cast<cudaStream_t>(args.launch.stream))) {}
  PlanView view() const override { return uploaded_->view(); }
  void was_used_on(cudaStream_t stream) override { uploaded_->was_used_on(stream); }

 private:
  std::shared_ptr<UploadedPlan> uploaded_;
};

// Read in place.
class ListsOfIndices final : public DeviceLists {
 public:
  ListsOfIndices(const KeyListView& keys, const TensorView& q, const TensorView& k)
      : table_(key_table(keys, q, k)) {}
  PlanView view() const override { return {{}, {&table_, 1}}; }

 private:
  GatherView table_;
};

device::DeviceIndices device_indices(const IndexView& indices) {
  device::DeviceIndices to{indices.data, indices.is_wide, std::max<int64_t>(1, indices.shape[1])};
  for (int d = 0; d < 4; ++d) to.strides[d] = indices.shape[d] > 1 ? indices.strides[d] : 0;
  return to;
}

// Made on the device, for every call.
class ListsOfTiles final : public DeviceLists {
 public:
  template <class Args>
  ListsOfTiles(const TileListView& lists, const KernelEntry& kernel, TileShape tile,
               const Args& args)
      : cut_(source_of(lists), target_of(kernel, tile, args)), view_(cut_.view(nullptr)) {}
  PlanView view() const override { return {{&view_, 1}, {}}; }
  int64_t bytes() const override { return cut_.bytes(); }
  void make(void* memory, cudaStream_t stream) override {
    view_ = cut_.view(memory);
    cut_.queue(memory, stream);
  }

 private:
  static device::ListSource source_of(const TileListView& lists) {
    const int64_t* const shape = lists.tiles.shape;
    return {lists.tile,
            shape[0],
            shape[1],
            shape[2],
            shape[3],
            device_indices(lists.tiles),
            device_indices(lists.counts),
            device_indices(lists.bitmap_of),
            lists.bitmaps,
            lists.num_bitmaps};
  }
  template <class Args>
  static device::ListTarget target_of(const KernelEntry& kernel, TileShape tile, const Args& args) {
    const PersistentCtas ctas = ctas_of(kernel, tile, args);
    return {.tile = tile,
            .layout = kernel.bitmaps,
            .q_len = args.q.shape[2],
            .k_len = args.k.shape[2],
            .batch = narrow(args.q.shape[0], "attention: batch"),
            .heads = narrow(args.q.shape[1], "attention: heads"),
            .with_transposed = is_backward(args),
            .num_ctas = ctas.num_ctas,
            .heads_per_section = ctas.heads_per_section};
  }

  device::CutLists cut_;
  TileView view_;
};

template <class Args>
std::unique_ptr<DeviceLists> lists_on_gpu(const Lists& lists, const KernelEntry& kernel,
                                          TileShape tile, const Args& args) {
  if (const auto* plan = std::get_if<Plan>(&lists.get())) {
    return std::make_unique<ListsOfPlan>(*plan, kernel, tile, args);
  }
  if (const auto* keys = std::get_if<KeyListView>(&lists.get())) {
    return std::make_unique<ListsOfIndices>(*keys, args.q, args.k);
  }
  const auto& tiles = std::get<TileListView>(lists.get());
  // No keys or no queries: no lists, like a plan for such a shape.
  if (args.q.shape[0] * args.q.shape[1] * args.q.shape[2] * args.k.shape[2] == 0 ||
      tiles.tiles.shape[1] == 0) {
    return std::make_unique<NoLists>();
  }
  return std::make_unique<ListsOfTiles>(tiles, kernel, tile, args);
}

// The kernel's scratch memory, then that of the lists.
struct Scratch {
  int64_t lists_at, bytes;
};
template <class Args>
Scratch scratch_of(const KernelEntry& kernel, const DeviceLists& lists, const Args& args) {
  const int64_t own = round_up(workspace_of(kernel, args), 256);
  return {own, checked_add(own, lists.bytes(), "attention: the workspace")};
}

template <class Args>
int64_t workspace_on_gpu(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                         Args& args) {
  const OnGpu here(args.q.device.ordinal);
  describe_gpu(args.q.device, args.launch);
  const auto on_gpu = lists_on_gpu(lists, kernel, tile, args);
  args.plan = on_gpu->view();
  return scratch_of(kernel, *on_gpu, args).bytes;
}

template <class Args>
void run_on_gpu(const KernelEntry& kernel, const Lists& lists, TileShape tile, Args& args,
                const AllocateWorkspace& allocate) {
  OnGpu here(args.q.device.ordinal);
  forget_old_errors();
  describe_gpu(args.q.device, args.launch);
  const auto stream = static_cast<cudaStream_t>(args.launch.stream);
  const auto on_gpu = lists_on_gpu(lists, kernel, tile, args);
  args.plan = on_gpu->view();
  const Scratch scratch = scratch_of(kernel, *on_gpu, args);
  const Workspace brought = {args.launch.workspace, args.launch.workspace_bytes};
  const auto launch = [&](void* workspace) {
    args.launch.workspace = workspace;
    args.launch.workspace_bytes = scratch.bytes;
    if (on_gpu->bytes() > 0) {
      on_gpu->make(static_cast<char*>(workspace) + scratch.lists_at, stream);
      args.plan = on_gpu->view();
    }
    run(kernel, args);
  };
  try {
    with_workspace(here, brought, allocate, scratch.bytes, stream, launch);
  } catch (...) {
    try {  // if a launch fails, those queued before it still read the lists
      on_gpu->was_used_on(stream);
    } catch (const Error&) {  // the first error says more
    }
    throw;
  }
  on_gpu->was_used_on(stream);
}

}  // namespace

int64_t forward_workspace_on_gpu(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                                 ForwardArgs args) {
  return workspace_on_gpu(kernel, lists, tile, args);
}
int64_t backward_workspace_on_gpu(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                                  BackwardArgs args) {
  return workspace_on_gpu(kernel, lists, tile, args);
}
void run_forward_on_gpu(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                        ForwardArgs args, const AllocateWorkspace& allocate) {
  run_on_gpu(kernel, lists, tile, args, allocate);
}
void run_backward_on_gpu(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                         BackwardArgs args, const AllocateWorkspace& allocate) {
  run_on_gpu(kernel, lists, tile, args, allocate);
}

void merge_on_gpu(const TensorView& into_out, const TensorView& into_lse,
                  const TensorView& from_out, const TensorView& from_lse, void* stream) {
  gpu(into_out.device);  // throws if there is no such GPU
  const OnGpu here(into_out.device.ordinal);
  forget_old_errors();
  device::launch_merge(into_out, into_lse, from_out, from_lse, static_cast<cudaStream_t>(stream));
}

}  // namespace keyhole
