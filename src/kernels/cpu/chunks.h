// src/kernels/cpu/chunks.h
// How the key tiles of one kv head are dealt out to work items of the backward pass: neighbouring
// tiles of about equal work. It depends on shape and plan only, never on the number of threads, so
// neither does the order in which contributions to dq are added.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/problem.h"

namespace keyhole::cpu {

// Packed query rows [begin, end) that a chunk adds to, for one head.
struct QueryRange {
  int64_t begin = 0, end = 0;
  int64_t offset = 0;  // of its rows among all rows of the wave's buffers
  int64_t rows() const { return end - begin; }
  bool has(int64_t row) const { return row >= begin && row < end; }
};

struct Chunk {
  int64_t unit;                     // within the wave
  int64_t begin, end;               // key tiles, class * k_tiles + tile
  std::vector<QueryRange> queries;  // [group]
};

struct Chunks {
  std::vector<Chunk> chunks;           // by unit, then by key tile
  std::vector<int64_t> first_of_unit;  // [num_units + 1]
  int64_t buffer_rows = 0;             // rows of dq buffers in all

  std::span<const Chunk> of_unit(int64_t unit) const {
    const int64_t first = first_of_unit[size_t(unit)], last = first_of_unit[size_t(unit + 1)];
    return std::span(chunks).subspan(size_t(first), size_t(last - first));
  }
  // How many chunks of a unit add to a packed query row, for one head of the group.
  int64_t num_reaching(int64_t unit, int64_t in_group, int64_t row) const {
    return std::ranges::count_if(of_unit(unit), [&](const Chunk& chunk) {
      return chunk.queries[size_t(in_group)].has(row);
    });
  }
};

// `most_rows` bounds the buffers, unless a single chunk per unit needs more.
Chunks chunk_key_tiles(const Problem& problem, const TileView& view, int64_t first_unit,
                       int64_t num_units, int64_t most_rows);

}  // namespace keyhole::cpu
