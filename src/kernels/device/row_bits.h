// src/kernels/device/row_bits.h
// One bit per entry for each row of a selection: what it may choose, drawn on the GPU from any
// parts of a plan. Kernels that choose then need to know nothing of plans.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/select_contract.h"

namespace keyhole::device {

// [heads][rows][words]: bit e % 32 of word e / 32. Rows begin at multiples of 16 bytes, and bits
// past the last entry are clear.
struct RowBits {
  const uint32_t* bits = nullptr;  // null: every entry
  int64_t words = 0;               // of a row
  int64_t head_stride = 0;         // in words; 0: all heads have the same rows

  constexpr bool is_given() const { return bits != nullptr; }
  constexpr const uint32_t* row(int64_t head, int64_t row) const {
    return bits + head * head_stride + row * words;
  }
};

int64_t row_words(int64_t entries);  // RowBits::words

// The memory for the bits of `rows` queries of each head (batch x groups of them).
int64_t row_bits_bytes(int64_t heads, int64_t rows, int64_t entries);

// Queues the drawing. memory: aligned to 256 bytes, row_bits_bytes of it. picked: on the GPU; row i
// is query picked[queries.first + i], and empty if there is no such query. Null: all are picked.
RowBits draw_row_bits(const PlanView& plan, int64_t heads, QueryRange queries, int64_t entries,
                      void* memory, cudaStream_t stream, const int32_t* picked = nullptr);

}  // namespace keyhole::device
