// src/kernels/cpu/config.h
// The sizes of the cpu kernels, each with its reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace keyhole::cpu {

// Packed matrices are divided into panels of this many columns. 64 floats are four AVX-512 vectors,
// the width of the micro-kernel; a panel of 128 rows is 32 KiB and stays in the L1 cache.
inline constexpr int64_t kPanel = 64;

// Packed rows are padded to whole vectors of at most 64 bytes.
inline constexpr size_t kAlignment = 64;

// The widest vector in elements of T.
template <class T>
inline constexpr int64_t kMaxLanes = int64_t(kAlignment / sizeof(T));

// Neighbouring key tiles are scored together, as a strip of up to this many keys: the row maximum
// and the rescaling then cost once per strip.
inline constexpr int64_t kStripKeys = 256;
// The same for the backward pass, which loops over queries.
inline constexpr int64_t kStripQueries = 128;
// The padding puts neighbouring rows of a strip in different cache sets.
inline constexpr int64_t kStripStride = kStripKeys + 16;

// Entmax only compares scores and keeps few (entmax_scan.h): its strips are wider, and scored for
// so many queries at a time that they stay in the L2 cache.
inline constexpr int64_t kScanKeys = 1024, kScanRows = 32;
inline constexpr int64_t kScanStride = kScanKeys + 16;

// Packs are made for as many heads at a time as fit here (at least one). More heads would only
// touch more fresh memory; fewer would make threads wait for each other more often.
inline constexpr int64_t kPackBytes = int64_t{16} << 20;

inline constexpr int64_t kMaxHeadDim = 576;

}  // namespace keyhole::cpu
