// src/runtime/registry.cpp
#include "runtime/registry.h"

#include "kernels/cpu/entries.h"

namespace keyhole {

std::span<const KernelEntry> kernel_table() {
  static const std::vector<KernelEntry> table = cpu::entries();
  return table;
}

}  // namespace keyhole
