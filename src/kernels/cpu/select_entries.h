// src/kernels/cpu/select_entries.h
// The kernels of the cpu backend that select keys, one table row per operation and dtype.
#pragma once

#include <vector>

#include "kernels/select_contract.h"

namespace keyhole::cpu {

std::vector<SelectKernel> select_entries();

}  // namespace keyhole::cpu
