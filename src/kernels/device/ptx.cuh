// src/kernels/device/ptx.cuh
// Single instructions that several backends use: asynchronous copies to shared memory, pairs of
// 16-bit elements, 2^x, additions to global memory. `smem` addresses are 32-bit addresses of shared
// memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace keyhole::device {

// threadIdx.x, reloaded: what is computed from it does not occupy registers across a loop.
__device__ __forceinline__ uint32_t thread_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}
// The x of lane 0. Makes a number that all lanes have provably warp-uniform.
__device__ __forceinline__ int warp_uniform(int x) { return __shfl_sync(~0u, x, 0); }
__device__ __forceinline__ uint32_t smem_address(const void* shared) {
  return uint32_t(__cvta_generic_to_shared(shared));
}

// 16 bytes from global to shared memory, bypassing the L1 cache; or zeros, without reading.
__device__ __forceinline__ void copy_async_or_zeros(uint32_t smem, const void* global,
                                                    bool is_inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(global),
               "r"(is_inside ? 16 : 0)
               : "memory");
}
// The same for 4 bytes.
__device__ __forceinline__ void copy_4_bytes_or_zeros(uint32_t smem, const void* global,
                                                      bool is_inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem), "l"(global),
               "r"(is_inside ? 4 : 0)
               : "memory");
}
// Makes the copies of this thread since the last commit one group.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kUnfinished groups of this thread, the youngest ones, are in flight.
template <int kUnfinished>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kUnfinished) : "memory");
}

// 16 bytes to global memory in one store. An assignment may become four stores, each to a part of
// every sector that a warp writes.
__device__ __forceinline__ void store_vector(void* global, const uint4& words) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(global)),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

__device__ __forceinline__ uint4 load_shared_vector(uint32_t smem) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(smem)
               : "memory");
  return words;
}
__device__ __forceinline__ void store_shared_vector(uint32_t smem, const uint4& words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ __forceinline__ uint2 load_shared_pair(uint32_t smem) {
  uint2 words;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "r"(smem)
               : "memory");
  return words;
}
__device__ __forceinline__ float2 load_shared_floats(uint32_t smem) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(two.x), "=f"(two.y)
               : "r"(smem)
               : "memory");
  return two;
}

// so_far + 0 * x, for two packed values: NaN from then on, once x is infinite or NaN.
template <class T>
__device__ __forceinline__ uint32_t add_zero_times(uint32_t two, uint32_t so_far) {
  uint32_t sum;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(two), "r"(0), "r"(so_far));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(two), "r"(0), "r"(so_far));
  }
  return sum;
}
// Two values, rounded; the first one in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack_two(float low, float high) {
  uint32_t two;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  }
  return two;
}
// Whether one of two packed values is infinite or NaN: all bits of its exponent are set.
template <class T>
__device__ __forceinline__ bool has_nonfinite(uint32_t two) {
  constexpr uint32_t kExponent = std::is_same_v<T, __nv_bfloat16> ? 0x7f80u : 0x7c00u;
  return (two & kExponent) == kExponent || (two >> 16 & kExponent) == kExponent;
}

// 2^x to 2 units in the last place; 0 below 2^-126.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// For numbers that are not tiny: below 2^-126 they count as 0.
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Counters between CTAs. Other memory may be seen earlier or later than a count, unless fences or
// the L2 cache keep the order.
__device__ __forceinline__ int32_t load_relaxed(const int32_t* global) {
  int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(global) : "memory");
  return value;
}
__device__ __forceinline__ void add_relaxed(int32_t* global, int32_t value) {
  asm volatile("red.relaxed.gpu.global.add.s32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}
// The same, once all is in memory that this thread knows to be done, also by others of its CTA.
__device__ __forceinline__ void add_released(int32_t* global, int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}

// Adds to two neighbours in global memory, each atomically; `global` is aligned to 8 bytes. A
// single instruction for both exists from sm_90 on.
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

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // and where the host's compiler reads
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

// Launches that may begin early (launch.h). Waits until the launch before this one has ended and
// its results can be read; does nothing if this one could not begin before that.
__device__ __forceinline__ void await_launch_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next launch, if it may begin early, begins when all CTAs of this one have said so or ended.
__device__ __forceinline__ void let_next_launch_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace keyhole::device
