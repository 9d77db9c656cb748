// src/plan/classify.h
#pragma once

#include <vector>

#include "pattern/node.h"
#include "plan/view.h"

namespace keyhole {

// The list of one query tile: the key tiles that the band of queries `q` (positions) may see. Full
// ones are runs, others single with bitmap kUnnamed. is_whole: the band fills its tile.
void list_tiles(const Node& node, Span q, int64_t num_k, TileShape tile, bool is_whole,
                std::vector<TileRun>& runs);

}  // namespace keyhole
