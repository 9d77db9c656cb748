// src/kernels/cpu/entries.h
// The kernels of the cpu backend, one table row per operation, kind of weights and dtype.
#pragma once

#include <string>
#include <vector>

#include "kernels/contract.h"

namespace keyhole::cpu {

std::vector<KernelEntry> entries();
// The instruction sets the kernels use here: "AVX3, AMX bf16", "AVX2", "NEON", ... or "plain C++".
std::string simd_target();

}  // namespace keyhole::cpu
