// src/kernels/cpu/key_panels.cpp
#include "kernels/cpu/key_panels.h"

namespace keyhole::cpu {

bool suits_a_cache(const TileView& view, int64_t num_slots) {
  const int64_t rows = int64_t{view.k_tiles} * view.tile.k;  // of a class
  const int64_t lists = int64_t{view.classes} * view.q_tiles;
  const int64_t most = 2 * ceil_div(rows * view.classes, kPanel) * view.groups;
  int64_t packs = 0;
  std::vector<int64_t> tags(size_t(num_slots), -1);
  for (int64_t i = 0; i < lists * view.groups; ++i) {
    const int64_t group = i / lists, list = view.order[i];
    const int32_t c = int32_t(list / view.q_tiles), q_tile = int32_t(list % view.q_tiles);
    for (const TileRun& run : list_of(view, int32_t(group), c, q_tile)) {
      const int64_t begin = c * rows + run.tile * int64_t{view.tile.k};
      const int64_t last = begin + run.count * int64_t{view.tile.k} - 1;
      for (int64_t panel = begin / kPanel; panel <= last / kPanel; ++panel) {
        int64_t& tag = tags[size_t(panel % num_slots)];
        if (tag == panel) continue;
        tag = panel;
        if (++packs > most) return false;
      }
    }
    if (list == lists - 1) std::fill(tags.begin(), tags.end(), -1);
  }
  return true;
}

}  // namespace keyhole::cpu
