// src/kernels/mma/waits.cuh
// Waits for barriers in shared memory, with a time limit in tests.
#pragma once

#include "kernels/mma/barriers.cuh"

namespace keyhole::mma {

// Raises an error by an illegal address. With a trap ptxas would serialise products.
__device__ __forceinline__ void raise_error() { *reinterpret_cast<volatile int32_t*>(16) = 1; }

// Wait until a phase is complete. The first is for kernels without a register to spare, where one
// warp waits by the second: if any other hangs, that one waits in vain, and raises an error in
// tests. kSleeps: after many polls, pauses between them.
template <bool kSleeps = false>
__device__ __forceinline__ void await_phase(uint64_t& barrier, uint32_t parity) {
  constexpr int kPatience = 1 << 8;
  for (int polls = 0; !is_over(barrier, parity); ++polls) {
    if (kSleeps && polls >= kPatience) __nanosleep(20);
  }
}
__device__ __forceinline__ void await_phase_or_raise(uint64_t& barrier, uint32_t parity) {
#ifdef KEYHOLE_BOUNDED_WAITS
  constexpr int kMany = 1 << 21;
  for (int polls = 0; !is_over(barrier, parity); ++polls) {
    if (polls >= kMany) raise_error();
  }
#else
  await_phase(barrier, parity);
#endif
}

// With KEYHOLE_BOUNDED_WAITS (for tests) a wait gives up after some seconds, and all later ones
// give up too; end() then raises an error. Lives in shared memory, initially 0.
struct Waits {
  int32_t gave_up;  // a wait has timed out: all others give up too

  // Waits until a phase is complete. is_over_already: is_over_now has returned true for it.
  __device__ __forceinline__ void await(uint64_t& barrier, uint32_t parity,
                                        bool is_over_already = false) {
#ifdef KEYHOLE_BOUNDED_WAITS
    constexpr int kFew = 1 << 8, kMany = 1 << 21;
    volatile int32_t& given_up = gave_up;
    for (int polls = 0; !is_over_already; ++polls) {
      is_over_already = is_over(barrier, parity);
      if (polls >= kFew && (polls >= kMany || given_up != 0)) {
        given_up = 1;
        is_over_already = true;
      }
    }
#else
    while (!is_over_already) is_over_already = is_over(barrier, parity);
#endif
  }
  __device__ __forceinline__ void end() const {
#ifdef KEYHOLE_BOUNDED_WAITS
    if (gave_up != 0) raise_error();
#endif
  }
};

}  // namespace keyhole::mma
