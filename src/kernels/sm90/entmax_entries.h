// src/kernels/sm90/entmax_entries.h
// The kernels of entmax and top_k for GPUs of compute capability 9.0: bf16 and fp16,
// head_dim up to 128.
#pragma once

#include <vector>

#include "kernels/contract.h"

namespace keyhole::sm90 {

std::vector<KernelEntry> entmax_entries();

}  // namespace keyhole::sm90
