// src/kernels/cpu/simd_targets.h
// Which instruction sets the vector code is compiled for. Included before Highway by every file
// that is compiled once for each of them.
#pragma once

// Each instruction set costs compile time. Disabled are those that gain little over their
// neighbours, and scalable vectors, whose registers cannot be counted at compile time.
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
