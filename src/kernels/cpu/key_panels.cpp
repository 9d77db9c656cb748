// src/kernels/cpu/key_panels.cpp
#include "kernels/cpu/key_panels.h"

namespace keyhole::cpu {
namespace {

bool suits_a_cache(const TileView& view, int64_t num_slots) {
  const int64_t rows = int64_t{view.k_tiles} * view.tile.k;  // of a class
  const int64_t lists = int64_t{view.classes} * view.q_tiles;
  const int64_t panels = ceil_div(rows * view.classes, kPanel);
  int64_t packs = 0;
  PanelSlots slots(num_slots);
  for (int64_t i = 0; i < lists * view.groups; ++i) {
    const int64_t group = i / lists, list = view.order[i];
    const int32_t c = int32_t(list / view.q_tiles), q_tile = int32_t(list % view.q_tiles);
    for (const TileRun& run : list_of(view, int32_t(group), c, q_tile)) {
      const int64_t begin = c * rows + run.tile * int64_t{view.tile.k};
      const int64_t last = begin + run.count * int64_t{view.tile.k} - 1;
      for (int64_t panel = begin / kPanel; panel <= last / kPanel; ++panel) {
        if (slots.find(group * panels + panel).is_new && ++packs > 2 * panels * view.groups) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

int64_t slots_that_suit(const TileView& view, int64_t most) {
  constexpr int64_t kFewest = 4;
  for (int64_t slots = kFewest;; slots = std::min(2 * slots, most)) {
    if (suits_a_cache(view, slots)) return slots;
    if (slots == most) return 0;
  }
}

}  // namespace keyhole::cpu
