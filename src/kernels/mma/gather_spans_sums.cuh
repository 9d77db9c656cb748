// src/kernels/mma/gather_spans_sums.cuh
// The consumers of gather_spans (gather_spans.cuh): the products of the slots of a stage, added to
// the sums of their keys in shared memory.
#pragma once

#include "kernels/mma/gather_spans_walk.cuh"
#include "kernels/mma/ptx.cuh"
#include "kernels/mma/row_swizzle.cuh"

namespace keyhole::mma {

// The address of a key's sums, if `first` is that of the first key, a multiple of a row's bytes.
// What is in the row is added by exclusive or: neighbouring slices of odd keys change places. So
// two keys that a quarter of a warp reads together are in the same banks half as often.
template <class S>
__device__ __forceinline__ uint32_t sums_at(uint32_t first, int32_t key) {
  static_assert(S::sums_row_bytes == 256);
  return first + uint32_t(key) * S::sums_row_bytes + uint32_t(key & 1) * 64;
}

// 16 bytes, if there are any: otherwise anything.
__device__ __forceinline__ uint4 load_shared_vector_if(uint32_t smem, bool is_there) {
  uint4 words;
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %5, 0;\n"
      "@there ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n"
      "}"
      : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
      : "r"(smem), "r"(int(is_there))
      : "memory");
  return words;
}

// What a warp needs for 16 keys of a slot. Of keys that are not there it is what lies behind those
// of the slot; their sums are not stored.
template <class S>
struct SpanOperands {
  uint32_t weights[4], rows[4], at[2];

  // first: of the keys, in the slot; rows_at: of this warp's columns.
  __device__ __forceinline__ void load(uint32_t slot, int32_t first, uint32_t rows_at) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t key = lane / 4 * 4 + uint32_t(first) * 4 + slot;
    const uint32_t pair = lane * 8 + uint32_t(first) * 32 + slot;
    const uint2 low = load_shared_pair(pair + S::weights_at);
    const uint2 high = load_shared_pair(pair + S::weights_at + 256);
    weights[0] = low.x, weights[2] = low.y, weights[1] = high.x, weights[3] = high.y;
    load_matrices_transposed(rows, slot + rows_at);
    at[0] = load_shared(key + S::keys_at);
    at[1] = load_shared(key + S::keys_at + 32);
  }
};

// Of 16 keys and columns 2 * (lane % 4) and the next one of two eights of columns.
struct SpanProducts {
  float low[4], high[4];

  __device__ __forceinline__ uint4 added_to(const uint4& sums, int half) const {
    return {__float_as_uint(__uint_as_float(sums.x) + low[2 * half]),
            __float_as_uint(__uint_as_float(sums.y) + low[2 * half + 1]),
            __float_as_uint(__uint_as_float(sums.z) + high[2 * half]),
            __float_as_uint(__uint_as_float(sums.w) + high[2 * half + 1])};
  }
};
template <class T, class S>
__device__ __forceinline__ SpanProducts multiply_pairs(const SpanOperands<S>& x) {
  SpanProducts products;
  Element<T>::multiply(products.low, x.weights, x.rows[0], x.rows[1]);
  Element<T>::multiply(products.high, x.weights, x.rows[2], x.rows[3]);
  return products;
}

// Adds the products of up to 16 keys. sums: where this lane's columns are in a row.
__device__ __forceinline__ void add_products(const SpanProducts& products, const uint32_t (&at)[2],
                                             uint32_t sums, int32_t count) {
  const int32_t key = int32_t(threadIdx.x % 32) / 4;
  uint4 four[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    four[half] = load_shared_vector_if(sums ^ at[half], key + 8 * half < count);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (key + 8 * half < count) {
      store_shared_vector(sums ^ at[half], products.added_to(four[half], half));
    }
  }
  __syncwarp();
}
// The same where a key may be listed twice: one key after the other.
__device__ __forceinline__ void add_products_singly(const SpanProducts& products,
                                                    const uint32_t (&at)[2], uint32_t sums,
                                                    int32_t count) {
  const int32_t mine = int32_t(threadIdx.x % 32) / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll 1
    for (int32_t key = 0; key < min(count - 8 * half, 8); ++key) {
      if (mine == key) {
        const uint32_t to = sums ^ at[half];
        store_shared_vector(to, products.added_to(load_shared_vector(to), half));
      }
      __syncwarp();
    }
  }
}

// A slot whose keys are unusual.
template <class T, class S>
__device__ __noinline__ void add_slot(uint32_t slot, SlotKeys keys, int32_t span, uint32_t rows_at,
                                      uint32_t sums) {
  const int32_t count = keys.count(span);
#pragma unroll 1
  for (int32_t first = 0; first < count; first += 16) {
    SpanOperands<S> operands;
    operands.load(slot, keys.before(span) + first, rows_at);
    const SpanProducts products = multiply_pairs<T>(operands);
    if (keys.has_twice()) {
      add_products_singly(products, operands.at, sums, count - first);
    } else {
      add_products(products, operands.at, sums, count - first);
    }
  }
}

// The slots of a stage, one after the other. While the sums of a slot are read, the products of the
// next one are computed, and the operands of the one after that are read.
template <class T, class S>
__device__ __forceinline__ void add_stage(uint32_t slots, const uint32_t (&packed)[S::slots],
                                          int32_t span, uint32_t rows_at, uint32_t sums) {
  SpanOperands<S> operands;
  operands.load(slots, SlotKeys{packed[0]}.before(span), rows_at);
  SpanProducts next = multiply_pairs<T>(operands);
  uint32_t next_at[2] = {operands.at[0], operands.at[1]};
  operands.load(slots + S::slot_bytes, SlotKeys{packed[1]}.before(span), rows_at);
#pragma unroll
  for (int i = 0; i < S::slots; ++i) {
    const SpanProducts now = next;
    const uint32_t at[2] = {next_at[0], next_at[1]};
    const SlotKeys keys{packed[i]};
    if (i + 1 < S::slots) {
      next = multiply_pairs<T>(operands);
      next_at[0] = operands.at[0], next_at[1] = operands.at[1];
    }
    if (i + 2 < S::slots) {
      operands.load(slots + (i + 2) * S::slot_bytes, SlotKeys{packed[i + 2]}.before(span), rows_at);
    }
    if (keys.is_unusual()) {
      add_slot<T, S>(slots + i * S::slot_bytes, keys, span, rows_at, sums);
    } else {
      add_products(now, at, sums, keys.count(span));
    }
  }
}

}  // namespace keyhole::mma
