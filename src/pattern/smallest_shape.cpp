// src/pattern/smallest_shape.cpp
// A pattern with per_head or per_batch in it names its own number of heads or batch entries.
#include "pattern/smallest_shape.h"

#include <algorithm>

#include "pattern/node.h"

namespace keyhole {
namespace {

void widen(Shape& shape, const Node& node) {
  const std::vector<NodePtr> children = node.children();
  const int64_t count = int64_t(children.size());
  if (node.kind() == Node::Kind::per_head) shape.heads = std::max(shape.heads, count);
  if (node.kind() == Node::Kind::per_batch) shape.batch = std::max(shape.batch, count);
  for (const NodePtr& child : children) widen(shape, *child);
}

}  // namespace

Shape smallest_shape(const Pattern& pattern, int64_t q_len, int64_t k_len) {
  Shape shape;
  shape.q_len = q_len;
  shape.k_len = k_len;
  widen(shape, *pattern.node());
  return shape;
}

}  // namespace keyhole
