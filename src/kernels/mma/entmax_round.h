// src/kernels/mma/entmax_round.h
// Rounds q and k of fp32 to bf16 in the workspace, so that a scan on tensor cores can look for the
// keys that may have weight. Every row of q gets a margin: how far its products may be off. A key
// that is not finite becomes NaN throughout: every scan keeps it, whatever its query is.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/entmax_params.h"

namespace keyhole::mma {

// Queues what fills `rounded`, whose largest keys are 0. q and k: fp32, head_dim a multiple of 8 up
// to 128, rows that begin at multiples of 16 bytes.
void launch_round_rows(const device::EntmaxParams& params, const device::RoundedRows& rounded,
                       cudaStream_t stream);

}  // namespace keyhole::mma
