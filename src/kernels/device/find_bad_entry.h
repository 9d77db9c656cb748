// src/kernels/device/find_bad_entry.h
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "plan/view.h"

namespace keyhole::device {

inline constexpr uint64_t kNoBadEntry = ~uint64_t{0};

// Queues a search of a table for entries that are neither a key nor -1. *found becomes the index of
// the first one in [groups][lists][count], or kNoBadEntry.
void launch_find_bad_entry(const GatherView& view, uint64_t* found, cudaStream_t stream);

}  // namespace keyhole::device
