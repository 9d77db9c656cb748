// src/kernels/device/gpu_context.h
// Which context is current: the driver's state of this process on a GPU. cudaDeviceReset() ends it,
// and with it all memory, streams, events, and what the driver was told of kernels; the next call
// begins another one, often at the same address. Its id is never used again, on no GPU.
#pragma once

#include <cstdint>

namespace keyhole::device {

// Asks the driver, which reads a variable of the thread: cheap enough for every call. Begins a
// context where there is none yet, or none any more. 0, which no context has: it cannot be known.
uint64_t current_context();

// The same on GPU `ordinal`, which is the current one, for destructors: begins none, and throws
// nothing. 0: there is none.
uint64_t living_context(int ordinal) noexcept;

}  // namespace keyhole::device
