// course/03_flash_fast/hopper.h
// The instructions of steps 5 to 7, one function each: barriers in shared memory (mbarrier), copies
// of whole tiles (TMA), products of a warpgroup (wgmma), registers that change hands (setmaxnreg).
#pragma once

#include <cuda.h>  // CUtensorMap

#include "problem.h"

namespace course {

// wgmma exists on compute capability 9.0 only; later GPUs have other products.
inline void need_hopper() {
  need_gpu(90);
  cudaDeviceProp gpu{};
  GPU(cudaGetDeviceProperties(&gpu, 0));
  if (gpu.major == 9) return;
  std::printf("this program needs a Hopper GPU, compute capability 9.0\n");
  std::exit(77);
}

__device__ __forceinline__ std::uint32_t smem_address(const void* place) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(place));
}

// ---- Barriers. A phase ends after `count` arrivals, and when all bytes that were announced have
// come. A wait names the parity of the phase: 0 for the first one, 1 for the second, 0 again, ...
__device__ __forceinline__ void init_barrier(std::uint64_t& barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_address(&barrier)), "r"(count)
               : "memory");
}
// Makes new barriers visible to TMA; for other threads a __syncthreads() must follow.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// One arrival, and so many bytes to wait for.
__device__ __forceinline__ void arrive_and_expect(std::uint64_t& barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(smem_address(&barrier)),
               "r"(bytes)
               : "memory");
}
// One arrival for a whole warp.
__device__ __forceinline__ void arrive_as_warp(std::uint64_t& barrier) {
  asm volatile(
      "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n"
      "@one mbarrier.arrive.shared.b64 _, [%0];\n}" ::"r"(smem_address(&barrier))
      : "memory");
}
// Whether the phase is over. try_wait may sleep a little before it says no; test_wait never does.
#define COURSE_IS_OVER(name, instruction)                                              \
  __device__ __forceinline__ bool name(std::uint64_t& barrier, std::uint32_t parity) { \
    std::uint32_t over;                                                                \
    asm volatile("{\n.reg .pred over;\nmbarrier." instruction                          \
                 ".parity.shared.b64 over, [%1], %2;\nselp.u32 %0, 1, 0, over;\n}"     \
                 : "=r"(over)                                                          \
                 : "r"(smem_address(&barrier)), "r"(parity)                            \
                 : "memory");                                                          \
    return over != 0;                                                                  \
  }
COURSE_IS_OVER(is_over, "try_wait")
COURSE_IS_OVER(is_over_now, "test_wait")

// Waits, but not for ever: a kernel that hangs takes the GPU with it. After a million polls a wait
// gives up, all later ones do so soon, and end() stops the program.
struct Waits {
  int gave_up;

  __device__ __forceinline__ void await(std::uint64_t& barrier, std::uint32_t parity,
                                        bool is_over_already = false) {
    volatile int& given_up = gave_up;
    for (int polls = 0; !is_over_already; ++polls) {
      is_over_already = is_over(barrier, parity);
      if (polls >= 256 && (polls >= 1 << 20 || given_up != 0)) {
        given_up = 1;
        is_over_already = true;
      }
    }
  }
  // By an illegal address: with __trap() anywhere in a kernel ptxas makes products wait for each
  // other.
  __device__ __forceinline__ void end() const {
    if (gave_up != 0) *reinterpret_cast<volatile int*>(16) = gave_up;
  }
};

// Named barriers of a CTA: `meet` waits until so many threads have come, `pass` only arrives.
__device__ __forceinline__ void meet(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
__device__ __forceinline__ void pass(int number, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// ---- TMA. A tile of 128 rows lies in shared memory as two panels of 64 columns. A panel has 128
// bytes a row, and TMA swizzles them as step 4 does: chunk c of row r lies at chunk c ^ r % 8.
inline constexpr int kTile = 128, kPanelBytes = kTile * 128, kTileBytes = 2 * kPanelBytes;

// Describes a tensor [heads][length][128] to TMA, in boxes of one panel.
inline CUtensorMap describe(const bf16* tensor, int length) {
  void* found = nullptr;  // asked of the driver at run time, so that the program starts without one
  cudaDriverEntryPointQueryResult result;
  GPU(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                       &result));
  const cuuint64_t sizes[3] = {kHeadDim, cuuint64_t(length), kHeads};
  const cuuint64_t strides[2] = {kHeadDim * 2, cuuint64_t(length) * kHeadDim * 2};  // bytes
  const cuuint32_t box[3] = {64, kTile, 1}, steps[3] = {1, 1, 1};
  CUtensorMap map{};
  if (found == nullptr ||
      reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found)(
          &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(tensor), sizes, strides, box,
          steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
          CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
    std::fprintf(stderr, "the driver could not describe a tensor to TMA\n");
    std::exit(1);
  }
  return map;
}

// One thread starts to copy a whole tile. Its bytes count towards the barrier, which expects them.
__device__ __forceinline__ void load_tile(const void* to, const CUtensorMap& map,
                                          std::uint64_t& barrier, int row, int head) {
#pragma unroll
  for (int panel = 0; panel < 2; ++panel) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(smem_address(to) + panel * kPanelBytes),
        "l"(&map), "r"(smem_address(&barrier)), "r"(panel * 64), "r"(row), "r"(head)
        : "memory");
  }
}

// ---- Registers: all warps of a warpgroup give some back, or ask for more.
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace course
