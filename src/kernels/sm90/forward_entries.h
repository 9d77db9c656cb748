// src/kernels/sm90/forward_entries.h
// The forward kernels on tensor cores by wgmma, fed by TMA, for GPUs of compute capability 9.0:
// bf16 and fp16, head_dim up to 256.
#pragma once

#include <vector>

#include "kernels/contract.h"

namespace keyhole::sm90 {

std::vector<KernelEntry> forward_entries();

}  // namespace keyhole::sm90
