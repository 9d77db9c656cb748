// src/kernels/mma/waits.cuh
// Waits for barriers in shared memory, with a time limit in tests.
#pragma once

#include "kernels/mma/barriers.cuh"

namespace keyhole::mma {

// With KEYHOLE_BOUNDED_WAITS (for tests) a wait gives up after some seconds, and all later ones
// give up too; end() then raises an error. Lives in shared memory, initially 0.
struct Waits {
  int32_t gave_up;  // a wait has timed out: all others give up too

  // Waits until a phase is complete. is_over_already: is_over_now has returned true for it.
  // kSleeps: after many polls, pauses between them. Forward kernels are 1 to 2 % slower with it.
  template <bool kSleeps = false>
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
    constexpr int kPatience = 1 << 8;
    for (int polls = 0; !is_over_already; ++polls) {
      is_over_already = is_over(barrier, parity);
      if (kSleeps && polls >= kPatience) __nanosleep(20);
    }
#endif
  }
  // Raises an error by an illegal address. With a trap, here or in a wait, ptxas would serialise
  // the products.
  __device__ __forceinline__ void end() const {
#ifdef KEYHOLE_BOUNDED_WAITS
    if (gave_up != 0) *reinterpret_cast<volatile int32_t*>(16) = gave_up;
#endif
  }
};

}  // namespace keyhole::mma
