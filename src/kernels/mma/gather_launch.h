// src/kernels/mma/gather_launch.h
// Parts of key lists on tensor cores, on any GPU from sm_80 on: launches for the padded head_dims
// 64, 96, 128, 192 and 256, f16 and bf16. src/kernels/instantiations.cmake lists what is compiled.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/backward_call.h"
#include "kernels/device/forward_call.h"

namespace keyhole::mma {

template <DType kType, int kHeadDim>
void launch_gather_forward(const device::GatherForwardParams& params, cudaStream_t stream);

// Adds to params.sums.dk and .dv, which must be given, in no fixed order. Writes or adds to dq as
// BackwardLaunches describes. No softcap.
template <DType kType, int kHeadDim>
void launch_gather_backward(const device::BackwardParams& params, const GatherView& view,
                            cudaStream_t stream);

// The launches over spans of keys (device/backward_call.h). No softcap.
template <DType kType, int kHeadDim>
void launch_gather_weights(const device::BackwardParams& params, const GatherView& view,
                           const device::SpanLists& lists, cudaStream_t stream);
// For any head_dim: the one that fits a CTA's shared memory.
device::LaunchSpans span_sums_launch(DType dtype, int64_t available_bytes);

// The launch with the smallest padded head_dim for the tensors of a call.
device::LaunchGather gather_forward_launch(const ForwardArgs& args);
// Null unless the schedule scatters: with lists by key the launch for any GPU is used
// (gather_backward.h).
device::LaunchGatherBackward gather_backward_launch(const BackwardArgs& args);
// Empty unless the schedule asks for spans.
device::SpanLaunches span_launches(const BackwardArgs& args);

}  // namespace keyhole::mma
