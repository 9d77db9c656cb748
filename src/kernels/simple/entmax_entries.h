// src/kernels/simple/entmax_entries.h
// Entmax and top_k on any GPU from sm_75, with any head_dim up to 576.
#pragma once

#include <vector>

#include "kernels/contract.h"

namespace keyhole::simple {

std::vector<KernelEntry> entmax_entries();

}  // namespace keyhole::simple
