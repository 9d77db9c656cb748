// src/runtime/registry.h
// All kernels of all backends, best first. Dispatch, tests, benchmarks and `keyhole info` walk it.
#pragma once

#include <span>

#include "kernels/contract.h"

namespace keyhole {

std::span<const KernelEntry> kernel_table();

}  // namespace keyhole
