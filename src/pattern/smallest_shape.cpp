// src/pattern/smallest_shape.cpp
// A pattern with per_head or per_batch in it names its own number of heads or batch entries, and so
// does a mask that has them.
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
  if (const std::optional<KnownSizes> sizes = node.sizes()) {
    shape.heads = std::max(shape.heads, sizes->heads);
    shape.batch = std::max(shape.batch, sizes->batch);
  }
  for (const NodePtr& child : children) widen(shape, *child);
}

std::optional<Lengths> lengths_of(const Node& node) {
  if (const std::optional<KnownSizes> sizes = node.sizes()) {
    if (sizes->counts_queries) return Lengths{sizes->most_q, sizes->most_k};
    const int64_t positions = sizes->least_k == sizes->most_k ? sizes->most_k : sizes->most_q;
    return Lengths{positions, positions};
  }
  if (node.kind() == Node::Kind::at) return {};  // inside it, positions are not those of the call
  for (const NodePtr& child : node.children()) {
    if (const std::optional<Lengths> lengths = lengths_of(*child)) return lengths;
  }
  return {};
}

}  // namespace

std::optional<Lengths> own_lengths(const Pattern& pattern) { return lengths_of(*pattern.node()); }

Shape smallest_shape(const Pattern& pattern, int64_t q_len, int64_t k_len) {
  Shape shape;
  shape.q_len = q_len;
  shape.k_len = k_len;
  widen(shape, *pattern.node());
  return shape;
}

}  // namespace keyhole
