// src/pattern/simplify.cpp
// Rewrites, each a law that tests/pattern/simplify_test.cpp checks pair by pair:
//
//   dense & a = a            ~dense & a = ~dense        a & a = a
//   dense | a = dense        ~dense | a = a             a | a = a           ~~a = a
//   bands (dense, causal, window): their intersection is a band; so is the union of two that meet,
//   and the complement of one that is open on a side
#include "pattern/simplify.h"

#include <algorithm>

#include "pattern/leaves/dense.h"
#include "pattern/leaves/window.h"
#include "pattern/node.h"

namespace keyhole {
namespace {

using Kind = Node::Kind;

const Window* as_band(const NodePtr& node) { return dynamic_cast<const Window*>(node.get()); }

// Replaces `node` by the union or intersection of it and `other`, when that is one band.
bool join_bands(Kind kind, NodePtr& node, const NodePtr& other) {
  const Window *a = as_band(node), *b = as_band(other);
  if (a == nullptr || b == nullptr) return false;
  if (kind == Kind::conjunction) {
    node = make_band(std::min(a->left(), b->left()), std::min(a->right(), b->right()));
    return true;
  }
  const Position last_begin = std::max(-a->left(), -b->left());
  const Position first_end = std::min(a->right(), b->right()) + 1;
  const bool has_empty = -a->left() > a->right() || -b->left() > b->right();
  if (has_empty || last_begin > first_end) return false;
  node = make_band(std::max(a->left(), b->left()), std::max(a->right(), b->right()));
  return true;
}

// Adds `part` to the parts of a chain, unless one that is there already says it.
void add_part(Kind kind, const NodePtr& part, std::vector<NodePtr>& parts) {
  for (NodePtr& there : parts) {
    if (is_same_expression(*there, *part) || join_bands(kind, there, part)) return;
  }
  parts.push_back(part);
}

NodePtr simplify_chain(Kind kind, const NodePtr& node) {
  const bool is_and = kind == Kind::conjunction;
  const auto settles = [&](const Node& part) { return is_and ? is_nothing(part) : is_dense(part); };
  const auto is_neutral = [&](const Node& part) {
    return is_and ? is_dense(part) : is_nothing(part);
  };

  std::vector<NodePtr> parts;
  for (const NodePtr& child : node->children()) {
    const NodePtr simple = simplify(child);
    if (simple->kind() == kind) {  // a name was dropped: its parts join ours
      for (const NodePtr& part : simple->children()) add_part(kind, part, parts);
    } else {
      add_part(kind, simple, parts);
    }
  }
  NodePtr out;
  for (const NodePtr& part : parts) {
    if (settles(*part)) return part;
    if (is_neutral(*part)) continue;
    out = out == nullptr ? part : is_and ? make_and(out, part) : make_or(out, part);
  }
  if (out == nullptr) return is_and ? make_dense() : make_nothing();
  return is_same_expression(*out, *node) ? node : out;
}

NodePtr simplify_not(const NodePtr& node) {
  const NodePtr child = node->children().front(), inner = simplify(child);
  if (inner->kind() == Kind::negation) return inner->children().front();
  if (const Window* band = as_band(inner)) {
    if (band->left() == kUnbounded) return make_band(-band->right() - 1, kUnbounded);
    if (band->right() == kUnbounded) return make_band(kUnbounded, -band->left() - 1);
  }
  return inner == child ? node : make_not(inner);
}

}  // namespace

NodePtr simplify(const NodePtr& node) {
  switch (node->kind()) {
    case Kind::conjunction:
    case Kind::disjunction:
      return simplify_chain(node->kind(), node);
    case Kind::negation:
      return simplify_not(node);
    case Kind::named: {
      const NodePtr meaning = node->children().front(), simple = simplify(meaning);
      // Arrays given as text have that text as their name; of their own they tell only a hash.
      const bool is_array = simple == meaning && meaning->kind() == Kind::leaf &&
                            as_band(meaning) == nullptr && meaning->children().empty();
      return is_array ? node : simple;
    }
    default:
      break;
  }
  if (const Window* band = as_band(node)) {
    const NodePtr shortest = make_band(band->left(), band->right());
    if (!is_same_expression(*shortest, *node)) return shortest;
  }
  return node;
}

bool is_same_expression(const Node& a, const Node& b) {
  if (&a == &b) return true;
  if (a.kind() != b.kind()) return false;
  const std::vector<NodePtr> left = a.children(), right = b.children();
  if (left.empty() && (a.is_opaque() || b.is_opaque())) return false;
  if (!std::equal(left.begin(), left.end(), right.begin(), right.end(),
                  [](const NodePtr& x, const NodePtr& y) { return is_same_expression(*x, *y); })) {
    return false;
  }
  switch (a.kind()) {  // the children say it all
    case Kind::conjunction:
    case Kind::disjunction:
    case Kind::negation:
    case Kind::per_head:
    case Kind::per_batch:
      return true;
    default:
      return a.text() == b.text();
  }
}

}  // namespace keyhole
