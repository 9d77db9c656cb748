// src/kernels/cpu/chunks.cpp
#include "kernels/cpu/chunks.h"

#include <algorithm>

#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {
namespace {

// Work items per wave: enough for the threads of a typical machine to share evenly. Each costs a
// buffer for dq, which is written and added up once more.
constexpr int64_t kItems = 16;

template <class Visit>
void for_each_t_run(const Problem& p, const TileView& view, int64_t unit, int64_t in_group,
                    int64_t k_tile, Visit visit) {
  const int32_t group = view.group_of[head_of(p, unit, in_group).index(p)];
  const int32_t c = int32_t(k_tile / view.k_tiles), tile = int32_t(k_tile % view.k_tiles);
  for (const TileRun& run : t_list_of(view, group, c, tile)) visit(run);
}

QueryRange query_range(const Problem& p, const TileView& view, int64_t unit, int64_t in_group,
                       int64_t begin, int64_t end) {
  QueryRange range = {.begin = view.classes * int64_t{view.q_tiles} * view.tile.q, .end = 0};
  for (int64_t k_tile = begin; k_tile < end; ++k_tile) {
    const int64_t first = k_tile / view.k_tiles * view.q_tiles;
    for_each_t_run(p, view, unit, in_group, k_tile, [&](const TileRun& run) {
      range.begin = std::min(range.begin, (first + run.tile) * view.tile.q);
      range.end = std::max(range.end, (first + run.tile + run.count) * view.tile.q);
    });
  }
  return range.end == 0 ? QueryRange() : range;
}

void add_chunks_of_unit(const Problem& p, const TileView& view, int64_t first_unit, int64_t unit,
                        int64_t num_chunks, Chunks& into) {
  const int64_t tiles = int64_t{view.classes} * view.k_tiles;
  std::vector<int64_t> work(size_t(tiles + 1), 0);  // tiles visited before each key tile
  for (int64_t k_tile = 0; k_tile < tiles; ++k_tile) {
    int64_t visited = 1;  // writing dk and dv
    for (int64_t g = 0; g < p.group; ++g) {
      for_each_t_run(p, view, first_unit + unit, g, k_tile,
                     [&](const TileRun& run) { visited += run.count; });
    }
    work[size_t(k_tile + 1)] = work[size_t(k_tile)] + visited;
  }
  int64_t begin = 0;
  for (int64_t i = 1; i <= num_chunks && begin < tiles; ++i) {
    const auto past = std::lower_bound(work.begin(), work.end(), work.back() * i / num_chunks);
    const int64_t end = i == num_chunks ? tiles : std::max(begin + 1, past - work.begin());
    Chunk chunk = {.unit = unit, .begin = begin, .end = end, .queries = {}};
    for (int64_t g = 0; g < p.group; ++g) {
      chunk.queries.push_back(query_range(p, view, first_unit + unit, g, begin, end));
    }
    into.chunks.push_back(std::move(chunk));
    begin = end;
  }
}

bool share_queries(const Chunk& one, const Chunk& other) {
  for (size_t g = 0; g < one.queries.size(); ++g) {
    const QueryRange &a = one.queries[g], &b = other.queries[g];
    if (std::max(a.begin, b.begin) < std::min(a.end, b.end)) return true;
  }
  return false;
}

// Assigns the query ranges of all chunks their rows in a buffer.
void place_in_buffers(Chunks& chunks) {
  for (Chunk& chunk : chunks.chunks) {
    chunk.is_alone = std::ranges::none_of(chunks.of_unit(chunk.unit), [&](const Chunk& other) {
      return &other != &chunk && share_queries(chunk, other);
    });
    int64_t offset = chunk.is_alone ? 0 : chunks.wave_rows;
    for (QueryRange& range : chunk.queries) {
      range.offset = offset;
      offset += range.rows();
    }
    if (!chunk.is_alone) chunks.wave_rows = offset;
  }
}

}  // namespace

Chunks chunk_key_tiles(const Problem& p, const TileView& view, int64_t first_unit,
                       int64_t num_units, int64_t most_rows) {
  for (int64_t per_unit = ceil_div(kItems, num_units);; per_unit = ceil_div(per_unit, 2)) {
    Chunks result;
    for (int64_t unit = 0; unit < num_units; ++unit) {
      result.first_of_unit.push_back(int64_t(result.chunks.size()));
      add_chunks_of_unit(p, view, first_unit, unit, per_unit, result);
    }
    result.first_of_unit.push_back(int64_t(result.chunks.size()));
    place_in_buffers(result);
    if (per_unit == 1 || result.wave_rows <= most_rows) return result;
  }
}

}  // namespace keyhole::cpu
