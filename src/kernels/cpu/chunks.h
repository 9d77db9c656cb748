// src/kernels/cpu/chunks.h
// How the key tiles of one kv head are divided into work items of the backward pass: neighbouring
// tiles of about equal work. The division depends only on shape and plan, not on the number of
// threads. So does the order in which contributions to dq are added.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/problem.h"

namespace keyhole::cpu {

// Packed query rows [begin, end) that a chunk adds to, for one head.
struct QueryRange {
  int64_t begin = 0, end = 0;
  int64_t offset = 0;  // of its rows in the buffer
  int64_t rows() const { return end - begin; }
  bool has(int64_t row) const { return row >= begin && row < end; }
};

struct Chunk {
  int64_t unit;                     // within the wave
  int64_t begin, end;               // key tiles, class * k_tiles + tile
  std::vector<QueryRange> queries;  // [group]
  // No other chunk adds to its queries: dq is summed in the thread's buffer and finished right
  // away. Otherwise it is summed in the wave's buffer.
  bool is_alone = false;

  int64_t rows() const {  // of dq
    int64_t sum = 0;
    for (const QueryRange& range : queries) sum += range.rows();
    return sum;
  }
};

struct Chunks {
  std::vector<Chunk> chunks;           // by unit, then by key tile
  std::vector<int64_t> first_of_unit;  // [num_units + 1]
  int64_t wave_rows = 0;               // rows of dq in the buffer of the wave

  std::span<const Chunk> of_unit(int64_t unit) const {
    const int64_t first = first_of_unit[size_t(unit)], last = first_of_unit[size_t(unit + 1)];
    return std::span(chunks).subspan(size_t(first), size_t(last - first));
  }
};

// `most_rows` bounds the buffer of the wave, unless a single chunk per unit needs more.
Chunks chunk_key_tiles(const Problem& problem, const TileView& view, int64_t first_unit,
                       int64_t num_units, int64_t most_rows);

}  // namespace keyhole::cpu
