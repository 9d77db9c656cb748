// src/plan/draft.h
// What the passes of the plan compiler work on: one part, one tile shape, unfinished lists.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/lists.h"
#include "plan/split_parts.h"

namespace keyhole {

inline constexpr int32_t kUnnamed = -2;  // TileRun::bitmap of a partial tile before name_tiles

// A partial tile that must be drawn; all tiles with the same name have the same bits.
struct TileName {
  int32_t group, class_index;
  int32_t q_tile, k_tile;  // where it was found first
};

struct Draft {
  Shape shape;
  TileLists lists;                                // runs, list_begin, list_count grow here
  std::vector<std::vector<NodePtr>> class_nodes;  // [group][class], in class coordinates
  std::vector<std::vector<int32_t>> node_ids;     // [group][class], equal for equal nodes
  std::vector<int64_t> class_offsets;             // [class] position of its first query
  std::vector<TileName> names;

  // The pairs of one tile that are inside the sequences, in class positions.
  struct Rect rect(int32_t class_index, int32_t q_tile, int32_t k_tile) const;
};

Draft begin_draft(const PartSpec& part, const Shape& shape, TileShape tile);

// The passes, each in the file of its name, in this order.
void classify(Draft& draft);      // pattern x tile grid -> runs of full tiles, and partial ones
void name_tiles(Draft& draft);    // equal signatures -> one name; nothing is drawn yet
void draw_bitmaps(Draft& draft);  // one bitmap per name; resolves every `some`
void group_heads(Draft& draft);   // equal tile lists -> one list, many heads
void order_lists(Draft& draft);   // longest lists first, so that the last wave is short

// Throws Error(internal) naming the pass and the first tile that breaks a rule.
void verify(const Draft& draft, const std::string& pass);

}  // namespace keyhole
