// src/select/visible_keys.cpp
#include "select/visible_keys.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "plan/plan_state.h"

namespace keyhole {
namespace {

// The sum of min(k, n) over n = 1 ... last.
int64_t capped_sum(int64_t last, int64_t k) {
  const int64_t rising = std::min(last, k);
  return rising * (rising + 1) / 2 + (last - rising) * k;
}

// Adds the keys that each query sees in the tiles of one group.
void add_tiles(const TileLists& lists, int32_t group, std::vector<int64_t>& keys) {
  const int64_t row_words = lists.bitmap_words() / lists.tile.q;
  const auto bits_of = [&](int32_t bitmap, int64_t row) {
    const uint64_t* const words =
        lists.bitmaps.data() + bitmap * lists.bitmap_words() + row * row_words;
    int64_t bits = 0;
    for (int64_t i = 0; i < row_words; ++i) bits += std::popcount(words[i]);
    return bits;
  };
  for (int64_t i = 0; i < lists.lists_per_group(); ++i) {
    const ResidueClass& residue = lists.residues[size_t(i / lists.q_tiles)];
    const int64_t first = i % lists.q_tiles * lists.tile.q;
    const int64_t rows = std::min<int64_t>(lists.tile.q, residue.num_q - first);
    const auto list = size_t(group * lists.lists_per_group() + i);
    for (int32_t run = 0; run < lists.list_count[list]; ++run) {
      const TileRun& tiles = lists.runs[size_t(lists.list_begin[list] + run)];
      for (int64_t row = 0; row < rows; ++row) {
        keys[size_t(residue.first_q + (first + row) * lists.stride)] +=
            tiles.bitmap == kFull ? int64_t{tiles.count} * lists.tile.k
                                  : bits_of(tiles.bitmap, row);
      }
    }
  }
}

void add_lists(const KeyLists& lists, int32_t group, std::vector<int64_t>& keys) {
  for (int64_t query = 0; query < lists.q_len; ++query) {
    keys[size_t(query)] += lists.list_count[size_t(group * lists.q_len + query)];
  }
}

}  // namespace

KeyCounts causal_keys(int64_t q_len, int64_t k_len, int64_t k) {
  const int64_t before = k_len - std::min(q_len, k_len);  // queries before key 0 see nothing
  return {capped_sum(k_len, k_len) - capped_sum(before, before),
          capped_sum(k_len, k) - capped_sum(before, k)};
}

KeyCounts keys_of(const Plan& plan, int64_t k) {
  PlanState& state = plan.state();
  const CompiledTiles& compiled = state.tiles(state.usual_tile());
  KeyCounts counts;
  std::vector<int64_t> keys;
  for (int64_t head = 0; head < state.shape().batch * state.shape().heads; ++head) {
    keys.assign(size_t(state.shape().q_len), 0);
    for (const TileLists& part : compiled.parts) {
      if (part.group_of[size_t(head)] >= 0) add_tiles(part, part.group_of[size_t(head)], keys);
    }
    for (const KeyLists& part : state.gathers()) {
      if (part.group_of[size_t(head)] >= 0) add_lists(part, part.group_of[size_t(head)], keys);
    }
    for (const int64_t visible : keys) {
      counts.visible += visible;
      counts.chosen += std::min(visible, k);
    }
  }
  return counts;
}

}  // namespace keyhole
