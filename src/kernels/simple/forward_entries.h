// src/kernels/simple/forward_entries.h
// The kernels of the simple backend: any GPU from sm_75, any head_dim up to 576.
#pragma once

#include <vector>

#include "kernels/contract.h"

namespace keyhole::simple {

std::vector<KernelEntry> forward_entries();

}  // namespace keyhole::simple
