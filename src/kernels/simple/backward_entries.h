// src/kernels/simple/backward_entries.h
// The backward kernels of the simple backend, one table row per dtype.
#pragma once

#include <vector>

#include "kernels/contract.h"

namespace keyhole::simple {

std::vector<KernelEntry> backward_entries();

}  // namespace keyhole::simple
