// src/plan/name_tiles.cpp
// Partial tiles that must be equal get one name, before anything is drawn. A tile's signature is
// all that the pattern depends on inside it (for example the offset of the diagonal). A causal plan
// of 8,192 diagonal tiles has one name.
#include <string>
#include <unordered_map>
#include <vector>

#include "pattern/node.h"
#include "plan/compile.h"
#include "plan/draft.h"

namespace keyhole {

void name_tiles(Draft& draft) {
  TileLists& lists = draft.lists;
  std::unordered_map<std::string, int32_t> name_of;
  // The partial tiles of the previous list. This list usually has the same ones, and comparing
  // costs less than a map lookup.
  struct Known {
    std::string signature;
    int32_t name;
  };
  std::vector<Known> before;
  Signature signature;
  size_t list = 0;
  const auto new_name = [&](int32_t group, int32_t c, int32_t q_tile, int32_t k_tile) {
    draft.names.push_back({group, c, q_tile, k_tile});
    return int32_t(draft.names.size() - 1);
  };

  for (int32_t group = 0; group < lists.groups; ++group) {
    for (int32_t c = 0; c < lists.classes(); ++c) {
      const Node& node = *draft.class_nodes[size_t(group)][size_t(c)];
      for (int32_t q_tile = 0; q_tile < lists.q_tiles; ++q_tile, ++list) {
        size_t place = 0;
        for (int32_t i = 0; i < lists.list_count[list]; ++i) {
          TileRun& run = lists.runs[size_t(lists.list_begin[list] + i)];
          if (run.bitmap != kUnnamed) continue;
          const Rect rect = draft.rect(c, q_tile, run.tile);
          signature.clear();
          signature.add(draft.node_ids[size_t(group)][size_t(c)]);
          signature.add(rect.q.size());
          signature.add(rect.k.size());
          // A rectangle that is all or none has no signature; its size is enough.
          const Cover cover = node.cover(rect);
          signature.add(int64_t(cover));
          if (cover == Cover::some && !node.sign(rect, signature)) {
            run.bitmap = new_name(group, c, q_tile, run.tile);
            continue;
          }
          if (place == before.size()) before.push_back({"", kUnnamed});
          Known& known = before[place++];
          if (known.signature != signature.bytes()) {
            const auto [entry, is_new] = name_of.try_emplace(signature.bytes(), 0);
            if (is_new) entry->second = new_name(group, c, q_tile, run.tile);
            known = {signature.bytes(), entry->second};
          }
          run.bitmap = known.name;
        }
      }
    }
  }
}

}  // namespace keyhole
