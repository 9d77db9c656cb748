// course/03_flash_fast/ampere.h
// The instructions of steps 3 and 4, one function each: fragments from shared memory (ldmatrix),
// the product of a warp (mma.sync), copies that do not wait (cp.async).
#pragma once

#include "problem.h"

namespace course {

// An address in shared memory as these instructions want it.
__device__ __forceinline__ std::uint32_t smem_address(const void* place) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(place));
}

// Loads four matrices of 8 x 8 bf16. Lane l gives the address of row l % 8 of matrix l / 8, 16
// bytes, and gets elements 2 * (l % 4) and the next one of row l / 4 of each of the four.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}
// The same, each matrix transposed: lane l gets rows 2 * (l % 4) and the next one of column l / 4.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&to)[4],
                                                         std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address)
               : "memory");
}

// sum += a . b: 16 rows, 8 columns, 16 terms. The sum is block j of an accumulator of several
// blocks of 8 columns (softmax.h says which elements a lane has). a is four matrices of 8 x 8:
// {upper left, lower left, upper right, lower right}. b0 and b1 are the upper and the lower one of
// b, of which a lane holds rows 2 * (lane % 4) and the next one of column lane / 4.
template <int kCount>
__device__ __forceinline__ void multiply_add(float (&sum)[kCount], int j,
                                             const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[4 * j]), "+f"(sum[4 * j + 1]), "+f"(sum[4 * j + 2]), "+f"(sum[4 * j + 3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Starts to copy 16 bytes from global to shared memory. The thread goes on at once, and the bytes
// pass through no register.
__device__ __forceinline__ void copy_async(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The copies that this thread has started since the last commit become one group.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until all groups of this thread have arrived but the youngest kLate ones.
template <int kLate>
__device__ __forceinline__ void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLate) : "memory");
}

}  // namespace course
