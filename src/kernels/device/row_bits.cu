// src/kernels/device/row_bits.cu
// A CTA draws a row: it clears the bits, then sets those of every list that the row has in a part.
// Parts are disjoint, so a word that a run fills entirely belongs to that run alone; all other
// words may be shared, and are added to atomically.
#include <algorithm>

#include "base/bits.h"
#include "base/int_math.h"
#include "kernels/device/key_list.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/row_bits.h"

namespace keyhole::device {
namespace {

constexpr int32_t kBitsThreads = 128;

__device__ uint32_t thread() { return threadIdx.x; }

// Bits [begin, end).
__device__ void set_range(uint32_t* bits, int64_t begin, int64_t end) {
  const int64_t first = begin / 32, last = (end - 1) / 32;
  for (int64_t word = first + thread(); word <= last; word += kBitsThreads) {
    uint32_t mask = ~0u;
    if (word == first) mask &= ~0u << (begin % 32);
    if (word == last) mask &= ~0u >> (31 - (end - 1) % 32);
    if (mask == ~0u) {
      bits[word] = mask;
    } else {
      atomicOr(bits + word, mask);
    }
  }
}

// Words of a bitmap, from bit `begin` on.
__device__ void or_words(const uint32_t* from, int32_t num_words, int64_t begin, uint32_t* bits) {
  const uint32_t shift = uint32_t(begin % 32);
  for (int32_t i = int32_t(thread()); i < num_words; i += kBitsThreads) {
    const uint32_t word = from[i], rest = shift == 0 ? 0 : word >> (32 - shift);
    uint32_t* const to = bits + begin / 32 + i;
    if (word << shift != 0) atomicOr(to, word << shift);
    if (rest != 0) atomicOr(to + 1, rest);
  }
}

// The class of a query and its row there.
struct Place {
  int32_t c;  // -1: in none
  int64_t row;
};
__device__ Place place_of(const TileView& view, int64_t query) {
  __shared__ int32_t found;
  if (thread() == 0) found = -1;
  __syncthreads();
  for (int32_t c = int32_t(thread()); c < view.classes; c += kBitsThreads) {
    const ResidueClass& residue = view.residues[c];
    const int64_t steps = query - residue.first_q;
    const bool is_here =
        steps >= 0 && steps % view.stride == 0 && steps / view.stride < residue.num_q;
    if (is_here) found = c;
  }
  __syncthreads();
  const int32_t c = found;
  __syncthreads();  // before the next part writes it
  return {c, c < 0 ? 0 : (query - view.residues[c].first_q) / view.stride};
}

// A run of tiles: all of its keys, or those whose bits are set in one row of its bitmap.
__device__ void draw_run(const TileView& view, const ResidueClass& residue, const TileRun& run,
                         int64_t row, uint32_t* bits) {
  const int64_t begin = int64_t{run.tile} * view.tile.k;
  const int64_t end = min(begin + int64_t{run.count} * view.tile.k, residue.num_k);
  if (end <= begin) return;
  const uint32_t* drawn = nullptr;
  if (run.bitmap != kFull) {
    const int64_t place = run.bitmap * int64_t{view.tile.q} + row % view.tile.q;
    drawn = reinterpret_cast<const uint32_t*>(view.bitmaps + place * words_per_row(view.tile.k));
  }
  if (view.stride == 1 && drawn == nullptr) {
    return set_range(bits, begin, end);
  }
  if (view.stride == 1) return or_words(drawn, ceil_div(view.tile.k, 32), begin, bits);
  for (int64_t key = begin + thread(); key < end; key += kBitsThreads) {
    const int64_t col = key - begin;
    if (drawn != nullptr && (drawn[col / 32] >> (col % 32) & 1) == 0) continue;
    const int64_t at = residue.first_k + view.stride * key;
    atomicOr(bits + at / 32, 1u << (at % 32));
  }
}

// A kernel receives the parts one at a time: a launch for each.
struct Target {
  uint32_t* bits;
  int64_t words, head_stride, first_query, rows, num_rows;  // num_rows: of all heads
  const int32_t* picked;                                    // null: every query
  __device__ uint32_t* row(int64_t head, int64_t row) const {
    return bits + head * head_stride + row * words;
  }
};

template <class Visit>
__device__ void for_each_row(const Target& to, int64_t q_len, Visit visit) {
  for (int64_t i = blockIdx.x; i < to.num_rows; i += gridDim.x) {
    const int64_t head = i / to.rows, row = i - head * to.rows;
    const int64_t place = to.first_query + row;
    const int64_t query = to.picked == nullptr ? place : to.picked[place];
    if (uint64_t(query) < uint64_t(q_len)) visit(head, query, to.row(head, row));
  }
}

__global__ void __launch_bounds__(kBitsThreads)
    draw_tiles(const __grid_constant__ TileView view, const __grid_constant__ Target to) {
  for_each_row(to, view.q_len, [&](int64_t head, int64_t query, uint32_t* bits) {
    const Place place = place_of(view, query);
    const int32_t group = view.group_of[head];
    if (place.c < 0 || group < 0) return;
    const int64_t list =
        (int64_t{group} * view.classes + place.c) * view.q_tiles + place.row / view.tile.q;
    const TileRun* const runs = view.runs + view.list_begin[list];
    for (int32_t i = 0; i < view.list_count[list]; ++i) {
      draw_run(view, view.residues[place.c], runs[i], place.row, bits);
    }
  });
}

__global__ void __launch_bounds__(kBitsThreads)
    draw_keys(const __grid_constant__ GatherView view, const __grid_constant__ Target to) {
  for_each_row(to, view.q_len, [&](int64_t head, int64_t query, uint32_t* bits) {
    const KeyList list = key_list(view, view.group_of_head(head), query / view.rows_per_list);
    for (uint32_t i = thread(); i < uint32_t(list.count); i += kBitsThreads) {
      if (const int32_t key = list.at(i); key >= 0) atomicOr(bits + key / 32, 1u << (key % 32));
    }
  });
}

// Whether all heads have the lists of the first.
bool is_one_row(const PlanView& plan) {
  return plan.gathers.empty() && std::ranges::all_of(plan.tiles, [](const TileView& view) {
           return view.work.is_one_group;
         });
}

}  // namespace

int64_t row_words(int64_t entries) { return round_up(ceil_div(entries, 32), 4); }

int64_t row_bits_bytes(int64_t heads, int64_t rows, int64_t entries) {
  const int64_t words = checked_mul(checked_mul(heads, rows, "select: rows"), row_words(entries),
                                    "select: bits of rows");
  return round_up(checked_mul(words, 4, "select: bits of rows"), 256);
}

RowBits draw_row_bits(const PlanView& plan, int64_t heads, QueryRange queries, int64_t entries,
                      void* memory, cudaStream_t stream, const int32_t* picked) {
  const bool is_shared = is_one_row(plan);
  const int64_t drawn_heads = is_shared ? std::min<int64_t>(heads, 1) : heads;
  const int64_t words = row_words(entries), head_words = words * queries.count;
  const Target to = {.bits = static_cast<uint32_t*>(memory),
                     .words = words,
                     .head_stride = is_shared ? 0 : head_words,
                     .first_query = queries.first,
                     .rows = queries.count,
                     .num_rows = drawn_heads * queries.count,
                     .picked = picked};
  const int64_t bytes = drawn_heads * head_words * 4;
  if (bytes > 0) {
    check_cuda(cudaMemsetAsync(memory, 0, size_t(bytes), stream), "clearing the bits of rows");
    const Grid grid = {unsigned(std::min<int64_t>(to.num_rows, INT32_MAX)), kBitsThreads, 0};
    for (const TileView& view : plan.tiles) {
      if (view.q_tiles > 0) launch("the bits of tiles", draw_tiles, grid, stream, view, to);
    }
    for (const GatherView& view : plan.gathers) {
      launch("the bits of key lists", draw_keys, grid, stream, view, to);
    }
  }
  return {to.bits, words, to.head_stride};
}

}  // namespace keyhole::device
