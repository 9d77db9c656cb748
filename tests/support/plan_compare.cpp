// tests/support/plan_compare.cpp
// Reads a plan the way a kernel does, one pair at a time, and counts how often each pair is
// visited.
#include "support/plan_compare.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/bits.h"
#include "base/check.h"
#include "plan/plan_state.h"

namespace keyhole::test {
namespace {

struct Mismatch {
  std::string text;
};
#define PLAN_RULE(condition, ...)                       \
  do {                                                  \
    if (!(condition)) throw Mismatch{say(__VA_ARGS__)}; \
  } while (false)

// How often the plan visits each pair of one head.
class Visits {
 public:
  Visits(int64_t q_len, int64_t k_len)
      : q_len_(q_len), k_len_(k_len), times_(size_t(q_len * k_len)) {}
  void add(int64_t query, int64_t key) {
    PLAN_RULE(query >= 0 && query < q_len_ && key >= 0 && key < k_len_, "visits the pair (", query,
              ", ", key, ") beyond the ends");
    ++times_[size_t(query * k_len_ + key)];
  }
  int times(int64_t query, int64_t key) const { return times_[size_t(query * k_len_ + key)]; }

 private:
  int64_t q_len_, k_len_;
  std::vector<uint8_t> times_;
};

constexpr int32_t kAbsent = -2;

// The bitmap (or kFull, or kAbsent) of each tile of a list; checks the runs on the way.
std::vector<int32_t> expand(const TileRun* runs, int32_t count, int32_t num_tiles,
                            int64_t num_bitmaps) {
  std::vector<int32_t> bitmap_of(size_t(num_tiles), kAbsent);
  int64_t next = 0;
  for (int32_t r = 0; r < count; ++r) {
    const TileRun& run = runs[r];
    PLAN_RULE(run.tile >= next && run.count >= 1 && run.tile + run.count <= num_tiles,
              "run at tile ", run.tile, " of ", run.count, " tiles is out of place");
    PLAN_RULE(run.bitmap >= kFull && run.bitmap < num_bitmaps, "names bitmap ", run.bitmap);
    PLAN_RULE(run.bitmap == kFull || run.count == 1, "a partial run of ", run.count, " tiles");
    for (int32_t t = run.tile; t < run.tile + run.count; ++t) bitmap_of[size_t(t)] = run.bitmap;
    next = int64_t{run.tile} + run.count;
  }
  return bitmap_of;
}

void visit_tile(const TileView& view, const ResidueClass& residue, int32_t q_tile, int32_t k_tile,
                int32_t bitmap, Visits& visits) {
  const int32_t words = words_per_row(view.tile.k);
  const int64_t rows = residue.num_q - int64_t{q_tile} * view.tile.q;
  const int64_t columns = residue.num_k - int64_t{k_tile} * view.tile.k;
  PLAN_RULE(bitmap != kFull || (rows >= view.tile.q && columns >= view.tile.k), "tile (", q_tile,
            ", ", k_tile, ") hangs over an end and is called full");
  int64_t bits = 0;
  for (int32_t row = 0; row < view.tile.q; ++row) {
    const uint64_t* word_row =
        bitmap == kFull ? nullptr : view.bitmaps + (int64_t{bitmap} * view.tile.q + row) * words;
    for (int32_t column = 0; column < words * 64; ++column) {
      if (word_row ? !get_bit(word_row, column) : column >= view.tile.k) continue;
      PLAN_RULE(row < rows && column < columns && column < view.tile.k, "tile (", q_tile, ", ",
                k_tile, ") has a bit beyond the end at (", row, ", ", column, ")");
      visits.add(residue.first_q + view.stride * (int64_t{q_tile} * view.tile.q + row),
                 residue.first_k + view.stride * (int64_t{k_tile} * view.tile.k + column));
      ++bits;
    }
  }
  PLAN_RULE(bits > 0, "lists tile (", q_tile, ", ", k_tile, "), where nobody attends");
}

void visit_tiles(const TileView& view, int32_t group, Visits& visits) {
  for (int32_t c = 0; c < view.classes; ++c) {
    std::vector<std::vector<int32_t>> by_query;
    for (int32_t q_tile = 0; q_tile < view.q_tiles; ++q_tile) {
      const int64_t list = view.list_index(group, c, q_tile);
      by_query.push_back(expand(view.runs + view.list_begin[list], view.list_count[list],
                                view.k_tiles, view.num_bitmaps));
      for (int32_t k_tile = 0; k_tile < view.k_tiles; ++k_tile) {
        const int32_t bitmap = by_query.back()[size_t(k_tile)];
        if (bitmap != kAbsent) visit_tile(view, view.residues[c], q_tile, k_tile, bitmap, visits);
      }
    }
    for (int32_t k_tile = 0; k_tile < view.k_tiles; ++k_tile) {
      const int64_t list = view.t_list_index(group, c, k_tile);
      const auto by_key = expand(view.t_runs + view.t_list_begin[list], view.t_list_count[list],
                                 view.q_tiles, view.num_bitmaps);
      for (int32_t q_tile = 0; q_tile < view.q_tiles; ++q_tile) {
        PLAN_RULE(by_key[size_t(q_tile)] == by_query[size_t(q_tile)][size_t(k_tile)], "tile (",
                  q_tile, ", ", k_tile, ") differs between the lists and the transposed lists");
      }
    }
  }
}

void check_order(const TileView& view, int32_t group) {
  const int64_t lists = int64_t{view.classes} * view.q_tiles;
  std::vector<bool> seen(size_t(lists), false);
  int64_t previous = INT64_MAX;
  for (int64_t i = 0; i < lists; ++i) {
    const int32_t list = view.order[group * lists + i];
    PLAN_RULE(list >= 0 && list < lists && !seen[size_t(list)], "the order is not a permutation");
    seen[size_t(list)] = true;
    int64_t tiles = 0;
    const int64_t at = group * lists + list;
    for (int32_t r = 0; r < view.list_count[at]; ++r)
      tiles += view.runs[view.list_begin[at] + r].count;
    PLAN_RULE(tiles <= previous, "the order does not put longer lists first");
    previous = tiles;
  }
}

void visit_gather(const GatherView& view, int32_t group, Visits& visits) {
  std::vector<std::pair<int64_t, int64_t>> pairs, transposed;  // (key, query)
  for (int64_t list = 0; list < view.lists; ++list) {
    const int64_t at = group * view.lists + list;
    int64_t next = 0;
    bool is_padding = false;
    for (int32_t i = 0; i < view.list_count[at]; ++i) {
      const int32_t key = view.keys[view.list_begin[at] + i];
      is_padding = is_padding || key == -1;
      if (is_padding) {
        PLAN_RULE(key == -1, "a key after the padding of list ", list);
        continue;
      }
      PLAN_RULE(key >= next && key < view.k_len, "key ", key, " of list ", list,
                " is out of place");
      next = int64_t{key} + 1;
      for (int64_t row = 0; row < view.rows_per_list; ++row) {
        const int64_t query = list * view.rows_per_list + row;
        if (query >= view.q_len) break;
        visits.add(query, key);
        pairs.push_back({key, query});
      }
    }
  }
  for (int64_t key = 0; key < view.k_len; ++key) {
    const int64_t at = group * view.k_len + key;
    for (int32_t i = 0; i < view.t_list_count[at]; ++i) {
      const int64_t list = view.t_lists[view.t_list_begin[at] + i];
      for (int64_t query = view.first_query(list); query < view.first_query(list + 1); ++query) {
        transposed.push_back({key, query});
      }
    }
  }
  std::sort(pairs.begin(), pairs.end());  // transposed lists are ascending: they must come sorted
  PLAN_RULE(pairs == transposed, "the transposed key lists are not the transpose");
}

void compare_head(const PlanView& view, const AllowedPairs& allowed, int64_t batch, int64_t head) {
  const Shape& shape = allowed.shape();
  const int64_t index = batch * shape.heads + head;
  Visits visits(shape.q_len, shape.k_len);
  for (const TileView& part : view.tiles) {
    if (part.group_of[index] >= 0) visit_tiles(part, part.group_of[index], visits);
  }
  for (const GatherView& part : view.gathers) {
    if (part.group_of[index] >= 0) visit_gather(part, part.group_of[index], visits);
  }
  for (int64_t query = 0; query < shape.q_len; ++query) {
    for (int64_t key = 0; key < shape.k_len; ++key) {
      const int want = allowed(batch, head, query, key) ? 1 : 0;
      PLAN_RULE(visits.times(query, key) == want, "batch ", batch, " head ", head, " pair (", query,
                ", ", key, ") is visited ", visits.times(query, key), " times; the pattern says ",
                want);
    }
  }
}

// Heads of one group in every part follow the same lists; their pairs need to be counted once, but
// compared with each head's own pattern.
void compare(const PlanView& view, const AllowedPairs& allowed) {
  const Shape& shape = allowed.shape();
  for (const TileView& part : view.tiles) {
    PLAN_RULE(
        part.t_runs || part.groups == 0 || !part.t_list_begin || part.k_tiles == 0 ||
            std::all_of(part.t_list_count,
                        part.t_list_count + int64_t{part.groups} * part.classes * part.k_tiles,
                        [](int32_t count) { return count == 0; }),
        "has no transposed lists");
    for (int32_t group = 0; group < part.groups; ++group) check_order(part, group);
  }
  for (int64_t batch = 0; batch < shape.batch; ++batch) {
    for (int64_t head = 0; head < shape.heads; ++head) compare_head(view, allowed, batch, head);
  }
}

#undef PLAN_RULE

}  // namespace

std::string compare_plan_with_pairs(const Plan& plan, const AllowedPairs& allowed, TileShape tile) {
  try {
    compare(plan.state().view(tile, /*with_transposed=*/true), allowed);
    return "";
  } catch (const Mismatch& mismatch) {
    return say("tile ", to_string(tile), ": ", mismatch.text);
  }
}

std::string compare_plan_with_pattern(const Plan& plan, const Pattern& pattern, TileShape tile) {
  return compare_plan_with_pairs(plan, AllowedPairs(pattern, plan.shape()), tile);
}

}  // namespace keyhole::test
