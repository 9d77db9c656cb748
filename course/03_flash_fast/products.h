// course/03_flash_fast/products.h
// The products of a warpgroup (wgmma): 64 queries with a tile of 128 keys or values. They are
// asynchronous: issued now, awaited later. What they read and write must not be touched meanwhile.
// "Terms" are what a product sums over: columns of queries and keys, rows of values.
#pragma once

#include "hopper.h"

namespace course {

// What a lane holds of 64 x 128 scores, or of the output, in the layout of softmax.h.
using Scores = float[kTile / 2];
using Weights = std::uint32_t[kTile / 16][4];  // 16 keys each, the left operand of a product

// An operand in shared memory, packed into 64 bits: the address, the distance of panels (for the
// operand whose rows are terms: values), 1024 bytes from eight rows to the next eight, and the
// swizzle of 128 bytes. Addresses count in units of 16 bytes.
__device__ __forceinline__ std::uint64_t operand(std::uint32_t address) {
  constexpr std::uint64_t swizzle = std::uint64_t{1} << 62, eight_rows = std::uint64_t{64} << 32;
  constexpr std::uint64_t panels = std::uint64_t{kPanelBytes >> 4} << 16;
  return swizzle | eight_rows | panels | (address & 0x3ffff) >> 4;
}

// Needed before a product that uses registers which other instructions have written.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// The products since the last commit become one group.
__device__ __forceinline__ void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kLate groups, the youngest ones, are in flight.
template <int kLate>
__device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLate) : "memory");
}
// The compiler does not know when a sum is complete; this keeps it from using it earlier.
__device__ __forceinline__ void is_ready(Scores& sum) {
#pragma unroll
  for (float& value : sum) asm volatile("" : "+f"(value));
}

// The 64 registers of a sum as operands of an instruction, and their names in its text.
#define COURSE_4(i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define COURSE_16(i) COURSE_4(i), COURSE_4(i + 4), COURSE_4(i + 8), COURSE_4(i + 12)
#define COURSE_SUM COURSE_16(0), COURSE_16(16), COURSE_16(32), COURSE_16(48)
#define COURSE_NAMES                                                                       \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "  \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "  \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

// sum (+)= left . right', 16 terms, both in shared memory, rows of 16 columns = terms.
template <bool kAdds>
__device__ __forceinline__ void multiply_shared(Scores& sum, std::uint64_t left,
                                                std::uint64_t right) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " COURSE_NAMES
      ", %64, %65, adds, 1, 1, 0, 0;\n}"
      : COURSE_SUM
      : "l"(left), "l"(right), "n"(int(kAdds)));
}
// sum += left . right, 16 terms: left in registers; the rows of right in shared memory are terms.
__device__ __forceinline__ void multiply_registers(Scores& sum, const std::uint32_t (&left)[4],
                                                   std::uint64_t right) {
  asm volatile(
      "{\n.reg .pred adds;\nsetp.eq.b32 adds, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " COURSE_NAMES
      ", {%64, %65, %66, %67}, %68, adds, 1, 1, 1;\n}"
      : COURSE_SUM
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}
#undef COURSE_4
#undef COURSE_16
#undef COURSE_SUM
#undef COURSE_NAMES

// scores = q . k': eight products of 16 columns, one group.
__device__ __forceinline__ void multiply_keys(Scores& scores, std::uint64_t queries,
                                              std::uint64_t keys) {
  multiply_shared<false>(scores, queries, keys);
#pragma unroll
  for (int d = 1; d < kHeadDim / 16; ++d) {  // four times 32 bytes in each of the two panels
    const int at = (d / 4 * kPanelBytes + d % 4 * 32) >> 4;
    multiply_shared<true>(scores, queries + at, keys + at);
  }
  commit_products();
}
// out += weights . v: eight products of 16 keys, one group.
__device__ __forceinline__ void multiply_values(Scores& out, const Weights& weights,
                                                std::uint64_t values) {
#pragma unroll
  for (int b = 0; b < kTile / 16; ++b) {  // 16 rows of 128 bytes
    multiply_registers(out, weights[b], values + (b * 16 * 128 >> 4));
  }
  commit_products();
}

}  // namespace course
