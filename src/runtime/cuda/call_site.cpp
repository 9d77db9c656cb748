// src/runtime/cuda/call_site.cpp
#include "runtime/call_site.h"

#include <deque>
#include <vector>

#include "base/check.h"
#include "kernels/device/gpu_context.h"
#include "runtime/cuda/call.h"
#include "runtime/cuda/upload.h"
#include "runtime/gpu.h"

namespace keyhole {
namespace {

class GpuSite final : public CallSite {
 public:
  GpuSite(const Device& device, void* stream, const AllocateWorkspace& allocate)
      : device_(device),
        stream_(static_cast<cudaStream_t>(stream)),
        allocate_(allocate),
        here_(device.ordinal) {
    forget_old_errors();
  }
  // Also when a launch failed: those queued before it still read the lists.
  ~GpuSite() override {
    for (const auto& plan : plans_) {
      try {
        plan->was_used_on(stream_);
      } catch (const Error&) {  // of a GPU that failed before; the first error says more
      }
    }
  }

  Launch launch() const override {
    Launch made;
    made.stream = stream_;
    describe_gpu(device_, made);
    return made;
  }

  // What no kernel of a selection reads is not scheduled: one processor, nothing split.
  PlanView follow(const Lists& lists, const Following& how) override {
    if (const auto* keys = std::get_if<KeyListView>(&lists.get())) {
      return {{}, {&tables_.emplace_back(key_table(*keys, how.q, how.k)), 1}};
    }
    const auto* plan = std::get_if<Plan>(&lists.get());
    KEYHOLE_ASSERT(plan != nullptr, "lists of tiles have no site");
    plans_.push_back(uploaded(*plan,
                              {.ordinal = device_.ordinal,
                               .context = device::current_context(),
                               .tile = how.tile,
                               .target = {.layout = how.bitmaps,
                                          .num_heads = how.q.shape[0] * how.q.shape[1],
                                          .with_transposed = false,
                                          .may_split = false,
                                          .may_split_transposed = false}},
                              stream_));
    return plans_.back()->view();
  }

  void with_scratch(int64_t bytes, const std::function<void(void*)>& run) override {
    with_workspace(here_, {}, allocate_, bytes, stream_, run);
  }

 private:
  Device device_;
  cudaStream_t stream_;
  const AllocateWorkspace& allocate_;
  OnGpu here_;
  std::vector<std::shared_ptr<UploadedPlan>> plans_;
  std::deque<GatherView> tables_;  // a deque: its elements never move
};

}  // namespace

std::unique_ptr<CallSite> call_site_on_gpu(const Device& device, void* stream,
                                           const AllocateWorkspace& allocate) {
  gpu(device);  // throws if there is no such GPU
  return std::make_unique<GpuSite>(device, stream, allocate);
}

}  // namespace keyhole
