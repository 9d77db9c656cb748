// src/kernels/device/store_plan.h
// The views of a plan in device memory, for kernels that follow all of its parts.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/exact_backward.cuh"

namespace keyhole::device {

// tiles, gathers: memory for as many views as the plan has. Queued; may be captured in a graph.
DevicePlan store_plan(const PlanView& plan, TileView* tiles, GatherView* gathers,
                      cudaStream_t stream);

}  // namespace keyhole::device
