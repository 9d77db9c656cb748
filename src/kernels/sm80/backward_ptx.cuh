// src/kernels/sm80/backward_ptx.cuh
// What the backward pass needs beside ptx.cuh: small copies, pairs of floats, additions to
// global memory. `smem` addresses are 32-bit addresses of shared memory.
#pragma once

#include "kernels/sm80/ptx.cuh"

namespace keyhole::sm80 {

// 4 bytes from global to shared memory, or zeros: nothing is read then.
__device__ __forceinline__ void copy_4_bytes_or_zeros(uint32_t smem, const void* global,
                                                      bool is_inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem), "l"(global),
               "r"(is_inside ? 4 : 0)
               : "memory");
}

__device__ __forceinline__ float2 load_shared_floats(uint32_t smem) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(two.x), "=f"(two.y)
               : "r"(smem)
               : "memory");
  return two;
}

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

// Adds to two neighbours in global memory, each atomically; `global` is aligned to 8 bytes. One
// instruction writes both only since sm_90.
__device__ __forceinline__ void add_to_global(float* global, float first, float second,
                                              bool is_wanted) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %3, 0;\n"
      "@wanted red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};\n"
      "}" ::"l"(global),
      "f"(first), "f"(second), "r"(int(is_wanted))
      : "memory");
#else
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %3, 0;\n"
      "@wanted red.relaxed.gpu.global.add.f32 [%0], %1;\n"
      "@wanted red.relaxed.gpu.global.add.f32 [%0 + 4], %2;\n"
      "}" ::"l"(global),
      "f"(first), "f"(second), "r"(int(is_wanted))
      : "memory");
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
// The same for four neighbours, in one instruction; `global` is aligned to 16 bytes.
__device__ __forceinline__ void add_to_global(float* global, const float2& first,
                                              const float2& second, bool is_wanted) {
  asm volatile(
      "{\n"
      ".reg .pred wanted;\n"
      "setp.ne.s32 wanted, %5, 0;\n"
      "@wanted red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};\n"
      "}" ::"l"(global),
      "f"(first.x), "f"(first.y), "f"(second.x), "f"(second.y), "r"(int(is_wanted))
      : "memory");
}
#endif

}  // namespace keyhole::sm80
