// src/runtime/cuda/upload.h
// The lists of a plan in GPU memory. They are scheduled (plan/schedule.h) and copied once per (GPU,
// tile, target), kept with the plan, and freed when the last kernel that reads them has ended.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <compare>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "keyhole/plan.h"
#include "plan/schedule.h"

namespace keyhole {

struct UploadKey {
  int ordinal = 0;
  uint64_t context = 0;  // of that GPU: after cudaDeviceReset() lists are copied again
  TileShape tile;
  Target target;
  auto operator<=>(const UploadKey&) const = default;
};

class UploadedPlan : public std::enable_shared_from_this<UploadedPlan> {
 public:
  UploadedPlan(const Plan& plan, const UploadKey& key, cudaStream_t stream);
  ~UploadedPlan();
  UploadedPlan(const UploadedPlan&) = delete;
  UploadedPlan& operator=(const UploadedPlan&) = delete;

  PlanView view() const { return {tiles_, gathers_}; }

  // Called after the launches that read it were queued, or captured: then the graph keeps it.
  void was_used_on(cudaStream_t stream);

 private:
  void stay_for_graph_of(cudaStream_t stream);

  int ordinal_;
  uint64_t context_;             // the context that owns its memory and events
  std::vector<TileView> tiles_;  // device pointers inside
  std::vector<GatherView> gathers_;
  void* memory_ = nullptr;
  // The default stream lives as long as the process and is never captured: it is queried when the
  // plan is destroyed. Another stream may be destroyed before the plan, so every call records an
  // event there.
  std::atomic<bool> is_used_on_default_ = false;
  std::mutex mutex_;
  struct Use {
    cudaStream_t stream;
    cudaEvent_t last;  // recorded after the last launch there
  };
  std::vector<Use> uses_;
  std::optional<unsigned long long> last_capture_;  // whose graph keeps it
};

// A plan keeps its most recently used uploads: forward and backward for some call shapes. An
// evicted one is copied again when it is needed.
inline constexpr size_t kMostUploads = 16;

// The plan's upload for this key, created on first use.
std::shared_ptr<UploadedPlan> uploaded(const Plan& plan, const UploadKey& key, cudaStream_t stream);

}  // namespace keyhole
