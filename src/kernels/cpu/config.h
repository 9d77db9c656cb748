// src/kernels/cpu/config.h
// The sizes the cpu kernels are built around, each with its reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace keyhole::cpu {

// Packed matrices are cut into panels of this many columns. 64 floats are four AVX-512 vectors, the
// width of the micro-kernel; a panel of 128 rows is 32 KiB and stays in the first-level cache.
inline constexpr int64_t kPanel = 64;

// Packed rows are padded to whole vectors, of 64 bytes at most.
inline constexpr size_t kAlignment = 64;

// The widest vector in elements of T.
template <class T>
inline constexpr int64_t kMaxLanes = int64_t(kAlignment / sizeof(T));

// Neighbouring key tiles are scored together, as a strip of up to this many keys: the row maximum
// and the rescaling are then paid once per strip.
inline constexpr int64_t kStripKeys = 256;
// The same for the backward pass, which walks queries.
inline constexpr int64_t kStripQueries = 128;
// A row of a strip begins in another cache set than the row above it.
inline constexpr int64_t kStripStride = kStripKeys + 16;

// Packs are made for as many heads at a time as fit here (for one head at least). More would only
// be more fresh memory; fewer heads would leave threads waiting for each other more often.
inline constexpr int64_t kPackBytes = int64_t{16} << 20;

inline constexpr int64_t kMaxHeadDim = 576;

}  // namespace keyhole::cpu
