// src/kernels/sm80/backward_entries.h
// The backward kernels on tensor cores by mma.sync: bf16 and fp16, head_dim up to 256.
#pragma once

#include <vector>

#include "kernels/contract.h"

namespace keyhole::sm80 {

std::vector<KernelEntry> backward_entries();

}  // namespace keyhole::sm80
