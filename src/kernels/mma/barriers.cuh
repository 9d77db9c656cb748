// src/kernels/mma/barriers.cuh
// Barriers in shared memory (mbarriers), for kernels whose warps have different roles; and the ring
// of stages that they guard.
#pragma once

#include "kernels/device/ptx.cuh"

namespace keyhole::mma {

// A phase completes after `count` arrivals; then the next one begins.
__device__ __forceinline__ void init_barrier(uint64_t& barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(device::smem_address(&barrier)),
               "r"(count)
               : "memory");
}
__device__ __forceinline__ void arrive(uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(device::smem_address(&barrier))
               : "memory");
}

// One arrival, once all that this thread copies by copy_async and the like has arrived.
__device__ __forceinline__ void arrive_when_copied(uint64_t& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(device::smem_address(&barrier))
      : "memory");
}

// Whether the latest phase of this parity is complete. Before the first phase, parity 1 counts as
// complete. is_over may sleep a while before it returns false; is_over_now never does.
#define KEYHOLE_DEFINE_IS_OVER(name, instruction)                            \
  __device__ __forceinline__ bool name(uint64_t& barrier, uint32_t parity) { \
    uint32_t is_over;                                                        \
    asm volatile("{\n.reg .pred over;\n" instruction                         \
                 ".parity.shared.b64 over, [%1], %2;\n"                      \
                 "selp.u32 %0, 1, 0, over;\n}"                               \
                 : "=r"(is_over)                                             \
                 : "r"(device::smem_address(&barrier)), "r"(parity)          \
                 : "memory");                                                \
    return is_over != 0;                                                     \
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
KEYHOLE_DEFINE_IS_OVER(is_over, "mbarrier.try_wait")
#else  // has no wait that sleeps
KEYHOLE_DEFINE_IS_OVER(is_over, "mbarrier.test_wait")
#endif
KEYHOLE_DEFINE_IS_OVER(is_over_now, "mbarrier.test_wait")
#undef KEYHOLE_DEFINE_IS_OVER

// Stages are used in turn. The parity of a stage's barriers flips each time around the ring.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

}  // namespace keyhole::mma
