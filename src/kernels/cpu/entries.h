// src/kernels/cpu/entries.h
// The kernels of the cpu backend, one table row per operation and dtype.
#pragma once

#include <vector>

#include "kernels/contract.h"

namespace keyhole::cpu {

std::vector<KernelEntry> entries();
// The instruction set the kernels would use here: "AVX3", "AVX2", "NEON", ... or "plain C++".
const char* simd_target();

}  // namespace keyhole::cpu
