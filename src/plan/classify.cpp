// src/plan/classify.cpp
// Pattern x tile grid -> a list of runs for each query tile: full tiles, and partial ones that have
// no bitmap yet. Asks the pattern for one strip per query tile, and never visits absent tiles.
#include "plan/classify.h"

#include "base/int_math.h"
#include "plan/compile.h"
#include "plan/draft.h"

namespace keyhole {
namespace {

class ListMaker {
 public:
  ListMaker(TileShape tile, std::vector<TileRun>& runs)
      : tile_(tile), runs_(runs), first_(runs.size()) {}

  void add_partial(int64_t begin_tile, int64_t end_tile) {
    // One segment may end in the tile where the next one begins.
    if (runs_.size() > first_) begin_tile = std::max<int64_t>(begin_tile, last_tile() + 1);
    for (int64_t tile = begin_tile; tile < end_tile; ++tile) {
      runs_.push_back({int32_t(tile), 1, kUnnamed});
    }
  }
  void add_full(int64_t begin_tile, int64_t end_tile) {
    if (begin_tile < end_tile) {
      runs_.push_back({int32_t(begin_tile), int32_t(end_tile - begin_tile), kFull});
    }
  }

 private:
  int64_t last_tile() const { return int64_t{runs_.back().tile} + runs_.back().count - 1; }

  TileShape tile_;
  std::vector<TileRun>& runs_;
  size_t first_;
};

}  // namespace

void list_tiles(const Node& node, Span q, int64_t num_k, TileShape tile, bool is_whole,
                std::vector<TileRun>& runs) {
  if (q.is_empty() || num_k == 0) return;
  Strip strip;
  node.strip(q, {0, num_k}, tile.k, strip);
  ListMaker list(tile, runs);
  for (const Segment& segment : strip) {
    const int64_t first = segment.begin / tile.k, end = ceil_div(segment.end, tile.k);
    if (segment.cover == Cover::all && is_whole) {
      // Tiles inside the segment are full. Those at its ends, or past the last key, are not.
      const int64_t full_begin = ceil_div(segment.begin, tile.k);
      const int64_t full_end = std::max(full_begin, segment.end / tile.k);
      list.add_partial(first, std::min(full_begin, end));
      list.add_full(full_begin, full_end);
      list.add_partial(full_end, end);
    } else {
      list.add_partial(first, end);
    }
  }
}

void classify(Draft& draft) {
  TileLists& lists = draft.lists;
  lists.list_begin.reserve(size_t(lists.groups * lists.lists_per_group()));
  lists.list_count.reserve(size_t(lists.groups * lists.lists_per_group()));
  for (int32_t group = 0; group < lists.groups; ++group) {
    for (int32_t c = 0; c < lists.classes(); ++c) {
      const ResidueClass& residue = lists.residues[size_t(c)];
      const Node& node = *draft.class_nodes[size_t(group)][size_t(c)];
      for (int32_t q_tile = 0; q_tile < lists.q_tiles; ++q_tile) {
        const int64_t begin = int64_t{q_tile} * lists.tile.q;
        const int64_t end = std::min(begin + lists.tile.q, residue.num_q);
        const int64_t offset = draft.class_offsets[size_t(c)];
        lists.list_begin.push_back(int64_t(lists.runs.size()));
        list_tiles(node, {offset + begin, offset + end}, residue.num_k, lists.tile,
                   end - begin == lists.tile.q, lists.runs);
        lists.list_count.push_back(int32_t(int64_t(lists.runs.size()) - lists.list_begin.back()));
      }
    }
    KEYHOLE_CHECK(int64_t(lists.runs.size() * sizeof(TileRun)) <= kMaxPlanBytes,
                  "plan: the lists of ", lists.q_len, " queries and ", lists.k_len, " keys in ",
                  to_string(lists.tile), " tiles exceed ", kMaxPlanBytes,
                  " bytes; use a pattern that keeps less, or shorter sequences");
  }
}

}  // namespace keyhole
