// src/plan/verify.cpp
// The invariants of lists: after each pass, after compiling, and when they come from a file. A file
// is untrusted, so every index is checked here.
#include <algorithm>

#include "base/bits.h"
#include "base/check.h"
#include "plan/compile.h"
#include "plan/draft.h"
#include "plan/residues.h"

namespace keyhole {
namespace {

#define KEYHOLE_RULE(condition, ...)                                                \
  do {                                                                              \
    if (!(condition)) [[unlikely]]                                                  \
      throw Error(source.kind, say("plan lists ", source.name, ": ", __VA_ARGS__)); \
  } while (false)

void verify_frame(const TileLists& lists, const Shape& shape, const Source& source) {
  const TileShape tile = lists.tile;
  KEYHOLE_RULE(tile.q >= 1 && tile.k >= 1 && tile.q <= 1024 && tile.k <= 1024, "tile ",
               to_string(tile));
  KEYHOLE_RULE(lists.q_len == shape.q_len && lists.k_len == shape.k_len, "made for ", lists.q_len,
               " x ", lists.k_len, ", the plan for ", shape.q_len, " x ", shape.k_len);
  KEYHOLE_RULE(lists.stride >= 1 && lists.residues.size() == size_t(lists.stride),
               lists.residues.size(), " residue classes for stride ", lists.stride);
  KEYHOLE_RULE(lists.q_tiles >= 0 && lists.k_tiles >= 0 && lists.groups >= 0, "negative counts");
  const auto tiles_for = [&](int64_t length, int32_t size) {
    const int64_t per_class = (length + lists.stride - 1) / lists.stride;
    return (per_class + size - 1) / size;
  };
  KEYHOLE_RULE(lists.q_tiles == tiles_for(lists.q_len, tile.q) &&
                   lists.k_tiles == tiles_for(lists.k_len, tile.k),
               "a grid of ", lists.q_tiles, " x ", lists.k_tiles,
               " tiles does not fit the lengths");
  for (int64_t c = 0; c < lists.stride; ++c) {
    const ResidueClass want = residue_class(shape, lists.stride, c);
    const ResidueClass& got = lists.residues[size_t(c)];
    KEYHOLE_RULE(want.first_q == got.first_q && want.num_q == got.num_q &&
                     want.first_k == got.first_k && want.num_k == got.num_k,
                 "residue class ", c, " does not fit the shape");
  }
  KEYHOLE_RULE(lists.group_of.size() == size_t(shape.batch * shape.heads), lists.group_of.size(),
               " heads, expected ", shape.batch * shape.heads);
  for (const int32_t group : lists.group_of) {
    KEYHOLE_RULE(group >= -1 && group < lists.groups, "group ", group, " of ", lists.groups);
  }
  const size_t num_lists = size_t(lists.groups * lists.lists_per_group());
  KEYHOLE_RULE(lists.list_begin.size() == num_lists && lists.list_count.size() == num_lists,
               lists.list_begin.size(), " lists, expected ", num_lists);
  KEYHOLE_RULE(lists.bitmaps.size() % size_t(lists.bitmap_words()) == 0, "a broken bitmap array");
}

// The runs of one list: inside the grid, ascending, disjoint; partial ones single; bitmaps valid.
// min_bitmap: kUnnamed before name_tiles.
void verify_runs(std::span<const TileRun> runs, int32_t num_tiles, int64_t num_bitmaps,
                 int32_t min_bitmap, const Source& source) {
  int64_t next = 0;
  for (const TileRun& run : runs) {
    KEYHOLE_RULE(run.tile >= next && run.count >= 1 && int64_t{run.tile} + run.count <= num_tiles,
                 "run of ", run.count, " tiles at ", run.tile, " after ", next, " in a grid of ",
                 num_tiles);
    KEYHOLE_RULE(run.bitmap >= min_bitmap && run.bitmap < num_bitmaps, "bitmap ", run.bitmap,
                 " of ", num_bitmaps);
    KEYHOLE_RULE(run.bitmap == kFull || run.count == 1, "a partial run of ", run.count, " tiles");
    next = int64_t{run.tile} + run.count;
  }
}

template <class Entry>
std::span<const Entry> list_of(const std::vector<Entry>& entries, int64_t begin, int32_t count,
                               const Source& source) {
  KEYHOLE_RULE(begin >= 0 && count >= 0 && begin <= int64_t(entries.size()) &&
                   count <= int64_t(entries.size()) - begin,
               "a list of ", count, " entries at ", begin, " of ", entries.size());
  return {entries.data() + begin, size_t(count)};
}

// A tile that extends past an end is never full, and its bits past the end are clear. Kernels do
// not check lengths when masking, so such a bit would be a phantom key.
void verify_ends(const TileLists& lists, const ResidueClass& residue, int32_t q_tile,
                 std::span<const TileRun> runs, const Source& source) {
  const int64_t rows = residue.num_q - int64_t{q_tile} * lists.tile.q;
  for (const TileRun& run : runs) {
    const int64_t last_tile = int64_t{run.tile} + run.count - 1;
    const int64_t columns = residue.num_k - last_tile * lists.tile.k;
    if (rows >= lists.tile.q && columns >= lists.tile.k) continue;
    KEYHOLE_RULE(run.bitmap != kFull, "query tile ", q_tile, ", key tile ", last_tile,
                 " hangs over an end and is called full");
    const uint64_t* bitmap = lists.bitmaps.data() + int64_t{run.bitmap} * lists.bitmap_words();
    const int32_t words = words_per_row(lists.tile.k);
    for (int32_t row = 0; row < lists.tile.q; ++row) {
      for (int32_t column = row < rows ? int32_t(std::max<int64_t>(columns, 0)) : 0;
           column < words * 64; ++column) {
        KEYHOLE_RULE(!get_bit(bitmap + int64_t{row} * words, column), "query tile ", q_tile,
                     ", key tile ", last_tile, " has a bit beyond the end, row ", row, " column ",
                     column);
      }
    }
  }
}

int64_t tiles_in(const std::vector<TileRun>& runs) {
  int64_t tiles = 0;
  for (const TileRun& run : runs) tiles += run.count;
  return tiles;
}

}  // namespace

void verify(const Draft& draft, const std::string& pass) {
  const TileLists& lists = draft.lists;
  const Source source{"after " + pass};
  verify_frame(lists, draft.shape, source);
  const bool is_named = pass != "classify", is_drawn = is_named && pass != "name_tiles";
  const int64_t known = is_drawn ? lists.num_bitmaps() : int64_t(draft.names.size());
  for (size_t list = 0; list < lists.list_begin.size(); ++list) {
    verify_runs(list_of(lists.runs, lists.list_begin[list], lists.list_count[list], source),
                lists.k_tiles, known, is_named ? kFull : kUnnamed, source);
  }
}

void verify(const TileLists& lists, const Shape& shape, const Source& source) {
  verify_frame(lists, shape, source);
  const int64_t per_group = lists.lists_per_group();
  for (size_t list = 0; list < lists.list_begin.size(); ++list) {
    const auto runs = list_of(lists.runs, lists.list_begin[list], lists.list_count[list], source);
    verify_runs(runs, lists.k_tiles, lists.num_bitmaps(), kFull, source);
    const int64_t in_group = int64_t(list) % per_group;
    verify_ends(lists, lists.residues[size_t(in_group / lists.q_tiles)],
                int32_t(in_group % lists.q_tiles), runs, source);
  }
  KEYHOLE_RULE(lists.order.size() == lists.list_begin.size(), "an order of ", lists.order.size(),
               " lists");
  for (int32_t group = 0; group < lists.groups; ++group) {
    std::vector<bool> seen(size_t(per_group), false);
    for (int64_t i = 0; i < per_group; ++i) {
      const int32_t list = lists.order[size_t(group * per_group + i)];
      KEYHOLE_RULE(list >= 0 && list < per_group && !seen[size_t(list)],
                   "the order is no permutation");
      seen[size_t(list)] = true;
    }
  }
  if (lists.t_list_begin.empty()) return;
  KEYHOLE_RULE(lists.is_transposed() && lists.t_list_count.size() == lists.t_list_begin.size(),
               "half-made transposed lists");
  for (size_t list = 0; list < lists.t_list_begin.size(); ++list) {
    verify_runs(list_of(lists.t_runs, lists.t_list_begin[list], lists.t_list_count[list], source),
                lists.q_tiles, lists.num_bitmaps(), kFull, source);
  }
  KEYHOLE_RULE(tiles_in(lists.runs) == tiles_in(lists.t_runs), "the transposed lists hold ",
               tiles_in(lists.t_runs), " tiles, the lists ", tiles_in(lists.runs));
}

void verify(const KeyLists& lists, const Shape& shape, const Source& source) {
  KEYHOLE_RULE(lists.q_len == shape.q_len && lists.k_len == shape.k_len, "made for ", lists.q_len,
               " x ", lists.k_len, ", the plan for ", shape.q_len, " x ", shape.k_len);
  KEYHOLE_RULE(lists.groups >= 0 && lists.group_of.size() == size_t(shape.batch * shape.heads),
               lists.group_of.size(), " heads, expected ", shape.batch * shape.heads);
  for (const int32_t group : lists.group_of) {
    KEYHOLE_RULE(group >= -1 && group < lists.groups, "group ", group, " of ", lists.groups);
  }
  const size_t num_lists = size_t(lists.groups) * size_t(lists.q_len);
  KEYHOLE_RULE(lists.list_begin.size() == num_lists && lists.list_count.size() == num_lists,
               lists.list_begin.size(), " key lists, expected ", num_lists);
  for (size_t list = 0; list < num_lists; ++list) {
    int64_t next = 0;
    for (const int32_t key :
         list_of(lists.keys, lists.list_begin[list], lists.list_count[list], source)) {
      KEYHOLE_RULE(key >= next && key < lists.k_len, "key ", key, " after ", next, " of ",
                   lists.k_len);
      next = int64_t{key} + 1;
    }
  }
}

#undef KEYHOLE_RULE

}  // namespace keyhole
