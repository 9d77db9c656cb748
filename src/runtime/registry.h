// src/runtime/registry.h
// All kernels of all backends, best first. Dispatch, tests, benchmarks and `keyhole info` walk it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/contract.h"

namespace keyhole {

std::span<const KernelEntry> kernel_table();

// The backends of these kernels, each once, in the order of the table.
std::vector<std::string> backends_of(std::span<const KernelEntry> kernels);

// Why a kernel cannot run on this machine at all, as text; empty when it can.
std::string why_not_here(const KernelEntry& kernel);
// The same for kernels of a device, and of these compute capabilities if it is a GPU.
std::string why_not_here(Device::Kind device, int min_compute_capability,
                         int max_compute_capability);

// What a kernel leaves to the next one of the table on any GPU, as text: softcaps, tensors with
// strides or alignments it cannot read.
std::vector<std::string> objections_of(const KernelEntry& kernel);

}  // namespace keyhole
