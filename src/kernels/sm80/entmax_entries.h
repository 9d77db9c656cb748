// src/kernels/sm80/entmax_entries.h
// The kernels of entmax and top_k with a scan on tensor cores by mma.sync: bf16 and fp16, head_dim
// up to 128.
#pragma once

#include <vector>

#include "kernels/contract.h"

namespace keyhole::sm80 {

std::vector<KernelEntry> entmax_entries();

}  // namespace keyhole::sm80
