// src/kernels/sm90/ptx.cuh
// One function per instruction of sm_90a: warpgroup matrix products, barriers in shared memory, TMA
// copies, bulk additions to global memory. The PTX manual has pictures of the fragments.
#pragma once

#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked
#include <cuda_fp8.h>

#include "kernels/device/ptx.cuh"
#include "kernels/mma/barriers.cuh"

namespace keyhole::sm90 {

using device::smem_address;
using device::warp_uniform;
using mma::arrive;
using mma::init_barrier;
using mma::is_over;
using mma::is_over_now;

inline constexpr int kWarpgroup = 128;  // threads

// ---- Matrix products ----
// sum (+)= a . b over 16 terms (32 of 8 bits), 64 rows, by a warpgroup. Asynchronous: issued now,
// awaited later. Element 4 j + 2 h + e of thread t's accumulator is in row 16 (t / 32) + t % 32 / 4
// + 8 h, column 8 j + 2 (t % 4) + e. Registers of a product in flight must not be touched.

// The descriptor of an operand in shared memory: panels of 64 columns (128 bytes a row) in the
// 128-byte swizzle, where chunk c (16 bytes) of row r is stored at chunk c ^ r % 8. A panel is
// aligned to 1024 bytes.
//   rows are terms     (a "transposed" operand): 16 of them, columns from the first one on;
//                      the next panel is `panel_bytes` further
//   columns are terms  16 of them, rows from the first one on
__device__ __forceinline__ uint64_t operand(uint32_t smem, int panel_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t(panel_bytes >> 4) << 16 | (smem & 0x3ffff) >> 4;
}
// The same, computed where it is used: ptxas would else keep all descriptors of a loop in
// registers.
__device__ __forceinline__ uint64_t operand_anew(uint32_t smem, int panel_bytes) {
  asm volatile("" : "+r"(smem));
  return operand(smem, panel_bytes);
}
// The descriptor, moved by `bytes`.
__device__ __forceinline__ uint64_t further(uint64_t operand, int bytes) {
  return operand + uint64_t(bytes >> 4);
}

// Needed before the first product that uses registers which other instructions have written.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Makes the products since the last commit one group.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kUnfinished groups, the youngest ones, are in flight.
template <int kUnfinished>
__device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kUnfinished) : "memory");
}
// The compiler does not know when an accumulator is complete: this keeps it from using it earlier.
template <int kCount>
__device__ __forceinline__ void is_ready(float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sum[i]));
}

// The accumulator registers as operands, and their names. how: "+" if they are read too, "=" if
// not.
#define KEYHOLE_SUM_4(how, i) \
  how "f"(sum[i]), how "f"(sum[i + 1]), how "f"(sum[i + 2]), how "f"(sum[i + 3])
#define KEYHOLE_SUM_8(how, i) KEYHOLE_SUM_4(how, i), KEYHOLE_SUM_4(how, i + 4)
#define KEYHOLE_SUMS(how, i) KEYHOLE_SUM_8(how, i), KEYHOLE_SUM_8(how, i + 8)
#define KEYHOLE_SUM_16(how) KEYHOLE_SUMS(how, 0)
#define KEYHOLE_SUM_32(how) KEYHOLE_SUM_16(how), KEYHOLE_SUMS(how, 16)
#define KEYHOLE_SUM_48(how) KEYHOLE_SUM_32(how), KEYHOLE_SUMS(how, 32)
#define KEYHOLE_SUM_64(how) KEYHOLE_SUM_48(how), KEYHOLE_SUMS(how, 48)
#define KEYHOLE_SUM_96(how) KEYHOLE_SUM_64(how), KEYHOLE_SUMS(how, 64), KEYHOLE_SUMS(how, 80)
#define KEYHOLE_SUM_128(how) KEYHOLE_SUM_96(how), KEYHOLE_SUMS(how, 96), KEYHOLE_SUMS(how, 112)
#define KEYHOLE_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KEYHOLE_NAMES_32 \
  KEYHOLE_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KEYHOLE_NAMES_48 \
  KEYHOLE_NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define KEYHOLE_NAMES_64 \
  KEYHOLE_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define KEYHOLE_NAMES_96                                                             \
  KEYHOLE_NAMES_64                                                                   \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define KEYHOLE_NAMES_128                                                                    \
  KEYHOLE_NAMES_96                                                                           \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, " \
  "%111"                                                                                     \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "   \
  "%126, %127"

template <class T>
struct Product;

// of_shared: both operands in shared memory; kLeftRows, kRightRows: their rows are terms; kBegins:
//   the product overwrites the accumulator.
// begin_of_shared: overwrites too, and the compiler knows it: else it keeps registers for what the
//   accumulator held before.
// of_registers: the left operand in registers, packed like two neighbouring blocks of 8 columns of
//   an accumulator: {block 0 h 0, block 0 h 1, block 1 h 0, block 1 h 1}. Rows of the right operand
//   are terms; in of_register_rows its columns are.
// columns: of the right operand and of the accumulator, of which a thread holds `count` elements;
//   a0 to a5: the names of the operands after the accumulator.
#define KEYHOLE_DEFINE_PRODUCT(type, count, columns, a0, a1, a2, a3, a4, a5)                      \
  template <bool kBegins, bool kLeftRows, bool kRightRows>                                        \
  static __device__ __forceinline__ void of_shared(float(&sum)[count], uint64_t left,             \
                                                   uint64_t right) {                              \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " a2                                     \
                 ", 0;\n"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type             \
                 " {" KEYHOLE_NAMES_##count "}, " a0 ", " a1 ", adds, 1, 1, " a3 ", " a4 ";\n}"   \
                 : KEYHOLE_SUM_##count("+")                                                       \
                 : "l"(left), "l"(right), "n"(int(!kBegins)), "n"(int(kLeftRows)),                \
                   "n"(int(kRightRows)));                                                         \
  }                                                                                               \
  template <bool kLeftRows, bool kRightRows>                                                      \
  static __device__ __forceinline__ void begin_of_shared(float(&sum)[count], uint64_t left,       \
                                                         uint64_t right) {                        \
    asm volatile(                                                                                 \
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, 0, 0;\n"                                          \
        "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type                      \
        " {" KEYHOLE_NAMES_##count "}, " a0 ", " a1 ", adds, 1, 1, " a2 ", " a3 ";\n}"            \
        : KEYHOLE_SUM_##count("=")                                                                \
        : "l"(left), "l"(right), "n"(int(kLeftRows)), "n"(int(kRightRows)));                      \
  }                                                                                               \
  static __device__ __forceinline__ void of_registers(float(&sum)[count],                         \
                                                      const uint32_t(&left)[4], uint64_t right) { \
    asm volatile(                                                                                 \
        "{\n.reg .pred adds;\nsetp.eq.b32 adds, 0, 0;\n"                                          \
        "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type                      \
        " {" KEYHOLE_NAMES_##count "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " a4                     \
                                   ", adds, 1, 1, 1;\n}"                                          \
        : KEYHOLE_SUM_##count("+")                                                                \
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));                    \
  }                                                                                               \
  template <bool kBegins>                                                                         \
  static __device__ __forceinline__ void of_register_rows(                                        \
      float(&sum)[count], const uint32_t(&left)[4], uint64_t right) {                             \
    asm volatile("{\n.reg .pred adds;\nsetp.ne.b32 adds, " a5                                     \
                 ", 0;\n"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type             \
                 " {" KEYHOLE_NAMES_##count "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " a4            \
                                            ", adds, 1, 1, 0;\n}"                                 \
                 : KEYHOLE_SUM_##count("+")                                                       \
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),            \
                   "n"(int(!kBegins)));                                                           \
  }
#define KEYHOLE_DEFINE_PRODUCTS(type)                                                 \
  KEYHOLE_DEFINE_PRODUCT(type, 16, "32", "%16", "%17", "%18", "%19", "%20", "%21")    \
  KEYHOLE_DEFINE_PRODUCT(type, 32, "64", "%32", "%33", "%34", "%35", "%36", "%37")    \
  KEYHOLE_DEFINE_PRODUCT(type, 48, "96", "%48", "%49", "%50", "%51", "%52", "%53")    \
  KEYHOLE_DEFINE_PRODUCT(type, 64, "128", "%64", "%65", "%66", "%67", "%68", "%69")   \
  KEYHOLE_DEFINE_PRODUCT(type, 96, "192", "%96", "%97", "%98", "%99", "%100", "%101") \
  KEYHOLE_DEFINE_PRODUCT(type, 128, "256", "%128", "%129", "%130", "%131", "%132", "%133")
template <>
struct Product<__nv_bfloat16> {
  KEYHOLE_DEFINE_PRODUCTS("bf16")
};
template <>
struct Product<__half> {
  KEYHOLE_DEFINE_PRODUCTS("f16")
};
#undef KEYHOLE_DEFINE_PRODUCTS
#undef KEYHOLE_DEFINE_PRODUCT
// 32 terms of 8 bits at a time; columns are terms in both operands.
template <>
struct Product<__nv_fp8_e4m3> {
  template <bool kBegins, bool kLeftRows, bool kRightRows>
  static __device__ __forceinline__ void of_shared(float (&sum)[64], uint64_t left,
                                                   uint64_t right) {
    static_assert(!kLeftRows && !kRightRows, "8-bit operands have no transposed form");
    asm volatile(
        "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" KEYHOLE_NAMES_64
        "}, %64, %65, adds, 1, 1;\n}"
        : KEYHOLE_SUM_64("+")
        : "l"(left), "l"(right), "n"(int(!kBegins)));
  }
};
#undef KEYHOLE_NAMES_128
#undef KEYHOLE_NAMES_96
#undef KEYHOLE_NAMES_64
#undef KEYHOLE_NAMES_48
#undef KEYHOLE_NAMES_32
#undef KEYHOLE_NAMES_16
#undef KEYHOLE_SUM_128
#undef KEYHOLE_SUM_96
#undef KEYHOLE_SUM_64
#undef KEYHOLE_SUM_48
#undef KEYHOLE_SUM_32
#undef KEYHOLE_SUM_16
#undef KEYHOLE_SUMS
#undef KEYHOLE_SUM_8
#undef KEYHOLE_SUM_4

// The proxy fence. Products, TMA copies and bulk additions that this thread issues later see what
// it has stored or copied to shared memory, and what others stored before a barrier it has waited
// for. If other threads issue them, a barrier must follow.
__device__ __forceinline__ void publish_stores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// stmatrix, the inverse of ldmatrix: stores four 8x8 matrices of 16-bit elements to shared memory.
// Lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t smem, const uint32_t (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// ---- Barriers ----
// One arrival for a whole warp; all lanes must call.
__device__ __forceinline__ void arrive_as_warp(uint64_t& barrier) {
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "@one mbarrier.arrive.shared.b64 _, [%0];\n"
      "}" ::"r"(smem_address(&barrier))
      : "memory");
}
// One arrival. The phase also waits until that many bytes have been copied.
__device__ __forceinline__ void arrive_and_expect(uint64_t& barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(smem_address(&barrier)),
               "r"(bytes)
               : "memory");
}
// Makes new barriers visible to TMA. For other threads a __syncthreads() must follow.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Numbered barriers of a CTA; __syncthreads() uses number 0.
template <int kNumber, int kThreads>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
}

// The same with a number known only at run time. arrive_at does not wait.
template <int kThreads>
__device__ __forceinline__ void meet_at(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void arrive_at(int number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(kThreads) : "memory");
}

// ---- TMA ----
// Coordinates of a box: where it begins in a tensor of five dimensions, under their names in
// tma_tensors.h.
struct BoxAt {
  int32_t column, row, row_class, head, batch;
};
// Starts to copy a box to shared memory. Its bytes count towards the barrier's phase.
__device__ __forceinline__ void copy_box(uint32_t smem, const CUtensorMap* map, uint64_t& barrier,
                                         const BoxAt& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(smem),
      "l"(map), "r"(smem_address(&barrier)), "r"(at.column), "r"(at.row), "r"(at.row_class),
      "r"(at.head), "r"(at.batch)
      : "memory");
}
// Prefetches a tensor map.
__device__ __forceinline__ void prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Prefetches 128 bytes of global memory to the L1 cache.
__device__ __forceinline__ void prefetch(const void* global) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(global) : "memory");
}

// ---- From shared memory to global memory ----
// Starts to copy a box from shared memory. Elements outside the tensor are not stored.
__device__ __forceinline__ void store_box(const CUtensorMap* map, uint32_t smem, const BoxAt& at) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], "
      "[%1];" ::"l"(map),
      "r"(smem), "r"(at.column), "r"(at.row), "r"(at.row_class), "r"(at.head), "r"(at.batch)
      : "memory");
}
// Adds floats in shared memory to global memory, each atomically. Both addresses are 16-byte
// aligned.
__device__ __forceinline__ void add_from_shared(float* global, uint32_t smem, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global),
      "r"(smem), "r"(bytes)
      : "memory");
}
// Makes the stores and additions this thread has issued a group; waits until all groups have been
// read from shared memory; waits until they are complete.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void await_reads_of_stores() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void await_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// ---- Registers ----
// setmaxnreg: all warps of a warpgroup release registers, or ask for more.
template <int kRegisters>
__device__ __forceinline__ void shrink_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void grow_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace keyhole::sm90
