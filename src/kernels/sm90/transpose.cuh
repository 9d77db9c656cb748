// src/kernels/sm90/transpose.cuh
#pragma once

#include <cstdint>

namespace keyhole::sm90 {

// Transposes a 4 x 4 matrix of words, of which four lanes have a row each: lane l is row l / kStep
// % 4. Afterwards it has column l / kStep % 4.
template <int kStep>
__device__ __forceinline__ void transpose_four(uint32_t (&words)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool is_high = (threadIdx.x / kStep & bit) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      const uint32_t given = is_high ? words[i] : words[i + bit];
      const uint32_t got = __shfl_xor_sync(~0u, given, bit * kStep);
      if (is_high) {
        words[i] = got;
      } else {
        words[i + bit] = got;
      }
    }
  }
}
__device__ __forceinline__ float4 four_floats(const uint32_t (&words)[4]) {
  return {__uint_as_float(words[0]), __uint_as_float(words[1]), __uint_as_float(words[2]),
          __uint_as_float(words[3])};
}

}  // namespace keyhole::sm90
