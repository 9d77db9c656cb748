// src/kernels/mma/ptx.cuh
// The instructions of kernels that use mma.sync, one function each: asynchronous copies to shared
// memory, matrix fragments, the matrix product, 2^x. `smem` addresses are 32-bit addresses of
// shared memory. docs/gpu.md and the PTX manual have pictures of the fragments; `lane` is
// threadIdx.x % 32.
#pragma once

#include "kernels/device/ptx.cuh"

namespace keyhole::mma {

using device::add_to_global;
using device::await_copies;
using device::commit_copies;
using device::copy_4_bytes_or_zeros;
using device::copy_async_or_zeros;
using device::exp2_fast;
using device::load_shared_floats;
using device::load_shared_pair;
using device::load_shared_vector;
using device::reciprocal_fast;
using device::smem_address;
using device::store_shared_vector;
using device::thread_index;

// 16 bytes from global to shared memory, bypassing the L1 cache.
__device__ __forceinline__ void copy_async(uint32_t smem, const void* global) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(smem), "l"(global)
               : "memory");
}
// 4 bytes, through the L1 cache.
__device__ __forceinline__ void copy_async_word(uint32_t smem, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem), "l"(global) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t smem, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem), "r"(word) : "memory");
}
__device__ __forceinline__ uint32_t load_shared(uint32_t smem) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(smem) : "memory");
  return word;
}
// Keeps the compiler from starting so much at once that registers run out: loads from shared
// memory, and the products that need them, do not move across keep_order().
__device__ __forceinline__ void keep_order() { __syncwarp(); }
// Forces all of it to be computed before anything that follows. `never` is always false, which the
// compiler must not know: if it were true, the values would be loaded instead.
__device__ __forceinline__ void compute_now(uint32_t (&a)[4], uint32_t (&b)[4], float (&c)[2],
                                            bool never) {
  asm volatile(
      "{\n"
      ".reg .pred never;\n"
      "setp.ne.b32 never, %10, 0;\n"
      "@!never bra PASSED;\n"
      "AGAIN:\n"
      "ld.shared.v4.b32 {%0, %1, %2, %3}, [%11];\n"
      "ld.shared.v4.b32 {%4, %5, %6, %7}, [%11];\n"
      "ld.shared.v2.f32 {%8, %9}, [%11];\n"
      "setp.ne.b32 never, %0, 0;\n"
      "@never bra AGAIN;\n"
      "PASSED:\n"
      "}"
      : "+r"(a[0]), "+r"(a[1]), "+r"(a[2]), "+r"(a[3]), "+r"(b[0]), "+r"(b[1]), "+r"(b[2]),
        "+r"(b[3]), "+f"(c[0]), "+f"(c[1])
      : "r"(int(never)), "r"(0)
      : "memory");
}

// ldmatrix: four 8x8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l
// / 8, and gets elements 2 * (l % 4) and the next one of row l / 4 of each matrix. Volatile,
// because the contents change from tile to tile at the same address.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(smem));
}
// The same with transposed matrices: lane l gets rows 2 * (l % 4) and the next one of column l / 4.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&to)[4], uint32_t smem) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(smem));
}

// Transposes an 8x8 matrix of 16-bit elements in the layout of load_matrices.
__device__ __forceinline__ uint32_t transposed_matrix(uint32_t matrix) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

// What differs between the two 16-bit types.
template <class T>
struct Element;

// sum += a . b: 16 rows x 8 columns over 16 terms. Lane l holds elements 0, 1 of the sum in row l /
// 4, columns 2 * (l % 4) and the next one, and elements 2, 3 eight rows below.
#define KEYHOLE_DEFINE_MULTIPLY(type)                                                        \
  static __device__ __forceinline__ void multiply_add(float(&sum)[4], const uint32_t(&a)[4], \
                                                      uint32_t b0, uint32_t b1) {            \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                      \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"      \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));            \
  }                                                                                          \
  static __device__ __forceinline__ void multiply(float(&sum)[4], const uint32_t(&a)[4],     \
                                                  uint32_t b0, uint32_t b1) {                \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                      \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"  \
                 : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));  \
  }

template <>
struct Element<__nv_bfloat16> {
  // The largest probability before a row's maximum is raised. bf16 has the range of fp32; what is
  // left of it is headroom for sums and large values.
  static constexpr float max_probability = 16777216;  // 2^24

  KEYHOLE_DEFINE_MULTIPLY("bf16")
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    return device::pack_two<__nv_bfloat16>(low, high);
  }
};

template <>
struct Element<__half> {
  static constexpr float max_probability = 32768;  // 2^15: the largest power of two in fp16

  KEYHOLE_DEFINE_MULTIPLY("f16")
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    return device::pack_two<__half>(low, high);
  }
};
#undef KEYHOLE_DEFINE_MULTIPLY

// Helpers that keep registers free.

// An address that the compiler computes once and then adds to. Otherwise it would expand the sum of
// products and compute it anew for every use.
template <class T>
__device__ __forceinline__ T* fixed_address(T* global) {
  asm volatile("" : "+l"(global));
  return global;
}

// The same number, but opaque to the compiler. What is derived from it is computed where it is
// needed, not once before a loop whose registers are full.
__device__ __forceinline__ uint32_t opaque(uint32_t number) {
  asm volatile("" : "+r"(number));
  return number;
}

}  // namespace keyhole::mma
