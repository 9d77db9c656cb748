// src/plan/compile.cpp
// Compiling is a straight list of passes over one draft. Each pass is a plain function in the file
// of its name, and the draft is verified after every one of them.
#include "plan/compile.h"

#include "base/int_math.h"
#include "pattern/node.h"
#include "plan/draft.h"
#include "plan/residues.h"

namespace keyhole {
namespace {

struct Pass {
  const char* name;
  void (*run)(Draft& draft);
};

constexpr Pass kPasses[] = {
    {"classify", classify},       {"name_tiles", name_tiles},   {"draw_bitmaps", draw_bitmaps},
    {"group_heads", group_heads}, {"order_lists", order_lists},
};

// Two nodes with the same expression draw the same bits. An opaque node (a function) has only a
// name as text, which proves nothing.
bool are_equal(const NodePtr& a, const NodePtr& b) {
  return a == b || (!a->is_opaque() && !b->is_opaque() && a->text() == b->text());
}

void number_nodes(Draft& draft) {
  std::vector<NodePtr> distinct;
  for (const auto& nodes : draft.class_nodes) {
    std::vector<int32_t>& ids = draft.node_ids.emplace_back();
    for (const NodePtr& node : nodes) {
      size_t id = 0;
      // Residue classes are equal or all different; usually there are few distinct nodes.
      while (id < distinct.size() && id < 64 && !are_equal(distinct[id], node)) ++id;
      if (id == 64) id = distinct.size();
      if (id == distinct.size()) distinct.push_back(node);
      ids.push_back(int32_t(id));
    }
  }
}

}  // namespace

Rect Draft::rect(int32_t class_index, int32_t q_tile, int32_t k_tile) const {
  const ResidueClass& residue = lists.residues[size_t(class_index)];
  const int64_t q = int64_t{q_tile} * lists.tile.q, k = int64_t{k_tile} * lists.tile.k;
  const int64_t offset = class_offsets[size_t(class_index)];
  return {{offset + q, offset + std::min(q + lists.tile.q, residue.num_q)},
          {k, std::min(k + lists.tile.k, residue.num_k)}};
}

Draft begin_draft(const PartSpec& part, const Shape& shape, TileShape tile) {
  Draft draft;
  draft.shape = shape;
  TileLists& lists = draft.lists;
  lists.q_len = shape.q_len;
  lists.k_len = shape.k_len;
  lists.tile = tile;
  lists.stride = narrow(part.key.stride, "plan: stride");
  lists.q_tiles =
      narrow(ceil_div(ceil_div(shape.q_len, part.key.stride), tile.q), "plan: query tiles");
  lists.k_tiles =
      narrow(ceil_div(ceil_div(shape.k_len, part.key.stride), tile.k), "plan: key tiles");
  lists.groups = int32_t(part.group_nodes.size());
  lists.group_of = part.group_of;
  for (int64_t c = 0; c < part.key.stride; ++c) {
    lists.residues.push_back(residue_class(shape, part.key.stride, c));
    draft.class_offsets.push_back(class_offset(shape, part.key.stride, c));
  }
  for (const NodePtr& node : part.group_nodes) {
    std::vector<NodePtr>& nodes = draft.class_nodes.emplace_back();
    for (int64_t c = 0; c < part.key.stride; ++c) {
      nodes.push_back(part.key.stride == 1 ? node : node->in_residue(part.key.stride, c));
    }
  }
  number_nodes(draft);
  return draft;
}

TileLists compile_tiles(const PartSpec& part, const Shape& shape, TileShape tile) {
  Draft draft = begin_draft(part, shape, tile);
  for (const Pass& pass : kPasses) {
    pass.run(draft);
    verify(draft, pass.name);
  }
  verify(draft.lists, shape, {"after compiling"});
  return std::move(draft.lists);
}

}  // namespace keyhole
