// src/plan/draw_bitmaps.cpp
// One bitmap per name, one bit per pair. Resolves every `some`: a tile that turns out full joins a
// run, one that turns out empty leaves its list. Equal bitmaps under different names are stored
// once.
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "base/bits.h"
#include "base/check.h"
#include "base/hash.h"
#include "pattern/node.h"
#include "plan/compile.h"
#include "plan/draft.h"

namespace keyhole {
namespace {

constexpr int32_t kAbsent = -3;  // the value of a name if nothing attends in its tile

// Bitmaps, deduplicated by content.
class BitmapStore {
 public:
  BitmapStore(std::vector<uint64_t>& words, int64_t words_per_bitmap)
      : words_(words), size_(size_t(words_per_bitmap)) {}

  int32_t add(const uint64_t* bitmap) {
    const uint64_t hash = fnv1a64(bitmap, size_ * sizeof(uint64_t));
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto entry = begin; entry != end; ++entry) {
      const uint64_t* known = words_.data() + size_t(entry->second) * size_;
      if (std::memcmp(known, bitmap, size_ * sizeof(uint64_t)) == 0) return entry->second;
    }
    KEYHOLE_CHECK(int64_t((words_.size() + size_) * sizeof(uint64_t)) <= kMaxPlanBytes,
                  "plan: the bitmaps of its partial tiles exceed ", kMaxPlanBytes,
                  " bytes; use a pattern that is coarser, or shorter sequences");
    words_.insert(words_.end(), bitmap, bitmap + size_);
    const int32_t index = int32_t(words_.size() / size_ - 1);
    by_hash_.emplace(hash, index);
    return index;
  }

 private:
  std::vector<uint64_t>& words_;
  size_t size_;
  std::unordered_multimap<uint64_t, int32_t> by_hash_;
};

// The bits of one tile in the tile's own layout; returns how many are set.
int64_t draw(const Draft& draft, const TileName& name, std::vector<uint64_t>& bitmap) {
  const TileShape tile = draft.lists.tile;
  const Rect rect = draft.rect(name.class_index, name.q_tile, name.k_tile);
  BitRows bits(int32_t(rect.q.size()), int32_t(rect.k.size()));
  draft.class_nodes[size_t(name.group)][size_t(name.class_index)]->draw(rect, bits);
  bitmap.assign(bitmap.size(), 0);
  for (int32_t row = 0; row < bits.rows(); ++row) {
    std::copy_n(bits.row(row), bits.words(),
                bitmap.begin() + ptrdiff_t(row) * words_per_row(tile.k));
  }
  return bits.count();
}

// Removes absent tiles, and joins full tiles that are now adjacent into one run.
void settle_lists(TileLists& lists, const std::vector<int32_t>& bitmap_of_name) {
  size_t written = 0;
  for (size_t list = 0; list < lists.list_begin.size(); ++list) {
    const size_t begin = size_t(lists.list_begin[list]), first = written;
    const size_t end = begin + size_t(lists.list_count[list]);
    for (size_t i = begin; i < end; ++i) {
      TileRun run = lists.runs[i];
      if (run.bitmap != kFull) run.bitmap = bitmap_of_name[size_t(run.bitmap)];
      if (run.bitmap == kAbsent) continue;
      TileRun* last = written > first ? &lists.runs[written - 1] : nullptr;
      if (last && run.bitmap == kFull && last->bitmap == kFull &&
          last->tile + last->count == run.tile) {
        last->count += run.count;
      } else {
        lists.runs[written++] = run;
      }
    }
    lists.list_begin[list] = int64_t(first);
    lists.list_count[list] = int32_t(written - first);
  }
  lists.runs.resize(written);
}

}  // namespace

void draw_bitmaps(Draft& draft) {
  TileLists& lists = draft.lists;
  BitmapStore store(lists.bitmaps, lists.bitmap_words());
  std::vector<uint64_t> bitmap(size_t(lists.bitmap_words()));
  std::vector<int32_t> bitmap_of_name;
  bitmap_of_name.reserve(draft.names.size());
  const int64_t tile_pairs = int64_t{lists.tile.q} * lists.tile.k;
  for (const TileName& name : draft.names) {
    const int64_t attending = draw(draft, name, bitmap);
    bitmap_of_name.push_back(attending == 0            ? kAbsent
                             : attending == tile_pairs ? kFull
                                                       : store.add(bitmap.data()));
  }
  settle_lists(lists, bitmap_of_name);
}

}  // namespace keyhole
