// src/kernels/device/store_plan.cu
#include <algorithm>

#include "kernels/device/check_cuda.h"
#include "kernels/device/store_plan.h"

namespace keyhole::device {
namespace {

constexpr int32_t kViewsAtOnce = 8;

// Views go as kernel arguments: those are captured when a launch is queued, also into a graph.
template <class View>
struct SomeViews {
  View view[kViewsAtOnce];
};
template <class View>
__global__ void store_views(const __grid_constant__ SomeViews<View> some, View* to, int32_t count) {
  if (int32_t(threadIdx.x) < count) to[threadIdx.x] = some.view[threadIdx.x];
}

template <class View>
void store_all(std::span<const View> views, View* to, cudaStream_t stream) {
  for (size_t first = 0; first < views.size(); first += kViewsAtOnce) {
    SomeViews<View> some = {};
    const size_t count = std::min(views.size() - first, size_t(kViewsAtOnce));
    std::copy_n(views.begin() + std::ptrdiff_t(first), count, some.view);
    store_views<<<1, 32, 0, stream>>>(some, to + first, int32_t(count));
    check_cuda(cudaGetLastError(), "storing the views of a plan");
  }
}

}  // namespace

DevicePlan store_plan(const PlanView& plan, TileView* tiles, GatherView* gathers,
                      cudaStream_t stream) {
  store_all(plan.tiles, tiles, stream);
  store_all(plan.gathers, gathers, stream);
  return {tiles, gathers, int32_t(plan.tiles.size()), int32_t(plan.gathers.size())};
}

}  // namespace keyhole::device
