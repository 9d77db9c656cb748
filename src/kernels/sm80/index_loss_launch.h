// src/kernels/sm80/index_loss_launch.h
// The index loss and its gradients on tensor cores, on any GPU from sm_80 on: f16 and bf16 (bf16
// for gradients), with the same bits every time. src/kernels/instantiations.cmake lists what is
// compiled.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"
#include "kernels/sm80/index_loss_params.h"

namespace keyhole::sm80 {

enum class LossResult { loss, gradients };

// The pairs of all rows at hand. kHeads: of a tile (index_loss_config.h).
template <DType kType, int kHeads, LossResult kResult>
void launch_index_loss_pairs(const LossPairs& params, cudaStream_t stream);

// dq of all rows at hand from the gradients of q . k; and dw, where several CTAs shared a row.
template <DType kType, int kHeadDim>
void launch_index_loss_dq(const LossPairs& params, const device::DeviceTensor& dq,
                          cudaStream_t stream);

// The lists of the rows at hand from their bits. with_gradients: rows whose weights are all 0 have
// no keys.
void list_loss_keys(const LossPairs& params, bool with_gradients, cudaStream_t stream);

}  // namespace keyhole::sm80
