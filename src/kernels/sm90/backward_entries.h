// src/kernels/sm90/backward_entries.h
// The backward kernels on tensor cores by wgmma, for GPUs of compute capability 9.0: bf16 and fp16,
// head_dim up to 256.
#pragma once

#include <vector>

#include "kernels/contract.h"

namespace keyhole::sm90 {

std::vector<KernelEntry> backward_entries();

}  // namespace keyhole::sm90
