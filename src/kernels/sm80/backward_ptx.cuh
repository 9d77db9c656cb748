// src/kernels/sm80/backward_ptx.cuh
// What the backward pass needs beside ptx.cuh: what keeps registers free.
#pragma once

#include "kernels/sm80/ptx.cuh"

namespace keyhole::sm80 {

using device::add_to_global;
using device::copy_4_bytes_or_zeros;
using device::load_shared_floats;

// An address that the compiler computes once and then adds to. Left alone it takes sums of products
// apart and computes them anew for every use.
template <class T>
__device__ __forceinline__ T* fixed_address(T* global) {
  asm volatile("" : "+l"(global));
  return global;
}

// The same number, of which the compiler knows nothing: what follows from it is computed again
// where it is needed, instead of once, before a loop whose registers are full.
__device__ __forceinline__ uint32_t opaque(uint32_t number) {
  asm volatile("" : "+r"(number));
  return number;
}

}  // namespace keyhole::sm80
