// src/kernels/device/gpu_context.h
// Identifies the current CUDA context. cudaDeviceReset() destroys a context, and with it all
// memory, streams, events and kernel attributes. The next call creates another one, often at the
// same address. Context ids are never reused, on any GPU.
#pragma once

#include <cstdint>

namespace keyhole::device {

// Cheap enough for every call: the driver reads a thread-local variable. Creates a context if there
// is none yet, or none any more. 0, which no context has: unknown.
uint64_t current_context();

// The same for GPU `ordinal`, which must be the current one, for destructors: creates no context
// and does not throw. 0: there is none.
uint64_t living_context(int ordinal) noexcept;

}  // namespace keyhole::device
