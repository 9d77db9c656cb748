// src/plan/split_parts.cpp
// Splits a union such as `causal & (window(127) | dilated(128))`: its window becomes plain tiles,
// its dilated rest tiles inside residue classes, where it is a plain triangle. Thin terms (random
// tokens) become lists of keys. Pairs of an earlier part are removed from the later ones, so that
// parts are disjoint and their results can be merged. Every choice is by estimated cost.
#include "plan/split_parts.h"

#include <algorithm>
#include <limits>

#include "base/int_math.h"
#include "pattern/node.h"
#include "pattern/simplify.h"
#include "plan/compile.h"
#include "plan/estimate.h"

namespace keyhole {
namespace {

// Costs are in pairs computed at the rate of a large tile.

constexpr double kMergeRowCost = 24;  // merging one more part into a row of the output
constexpr double kSmallPlan = 16384;  // below this, plain tiles: the choice would cost more
constexpr double kMostlyFull = 2.2;   // cost over pairs below which no split is tried
constexpr size_t kMaxTerms = 8;       // a longer union is compiled as one part
constexpr TileShape kLargeTile{64, 64}, kSmallTile{16, 16};
constexpr double kLargeTilePairCost = 1.1, kSmallTilePairCost = 1.8;

// Replaces a named composition by its definition.
NodePtr unnamed(NodePtr node) {
  while (node->kind() == Node::Kind::named) node = node->children().front();
  return node;
}

NodePtr all_of(const std::vector<NodePtr>& nodes) {
  NodePtr result = nodes.front();
  for (size_t i = 1; i < nodes.size(); ++i) result = make_and(result, nodes[i]);
  return result;
}
NodePtr any_of(const std::vector<NodePtr>& nodes) {
  NodePtr result = nodes.front();
  for (size_t i = 1; i < nodes.size(); ++i) result = make_or(result, nodes[i]);
  return result;
}

// The terms of a union. A conjunction that contains a union is expanded, one union at a time: a &
// (b | c) gives a & b, a & c.
void collect_terms(const NodePtr& node, std::vector<NodePtr>& terms) {
  const NodePtr plain = unnamed(node);
  if (terms.size() > kMaxTerms) return;
  if (plain->kind() == Node::Kind::disjunction) {
    for (const NodePtr& child : plain->children()) collect_terms(child, terms);
    return;
  }
  if (plain->kind() == Node::Kind::conjunction) {
    std::vector<NodePtr> factors = plain->children();
    for (size_t i = 0; i < factors.size(); ++i) {
      const NodePtr factor = unnamed(factors[i]);
      if (factor->kind() != Node::Kind::disjunction) continue;
      for (const NodePtr& choice : factor->children()) {
        std::vector<NodePtr> product = factors;
        product[i] = choice;
        collect_terms(all_of(product), terms);
      }
      return;
    }
  }
  terms.push_back(node);
}

std::vector<NodePtr> terms_of(const NodePtr& node) {
  std::vector<NodePtr> terms;
  collect_terms(node, terms);
  if (terms.size() > kMaxTerms) return {node};
  return terms;
}

// The stride of the residue classes for a term: that of its widest dilated factor.
int64_t stride_of(const NodePtr& term) {
  const NodePtr plain = unnamed(term);
  if (plain->kind() != Node::Kind::conjunction) return plain->dilation();
  int64_t stride = 1;
  for (const NodePtr& factor : plain->children()) {
    const NodePtr inner = unnamed(factor);
    stride = std::max(
        stride, inner->kind() == Node::Kind::conjunction ? stride_of(inner) : inner->dilation());
  }
  return stride;
}

double tiles_cost(const Node& node, const Shape& shape, int64_t stride) {
  const auto pairs = [&](TileShape tile) {
    return estimate_tiles(node, shape, stride, tile) * double(tile.q) * double(tile.k);
  };
  return std::min(pairs(kLargeTile) * kLargeTilePairCost, pairs(kSmallTile) * kSmallTilePairCost);
}

double gather_cost(const Node& node, const Shape& shape) {
  const double pairs = estimate_pairs(node, shape);
  const bool fits = pairs * double(sizeof(int32_t)) < double(kMaxPlanBytes) / 4 &&
                    shape.k_len < std::numeric_limits<int32_t>::max() &&
                    shape.q_len < std::numeric_limits<int32_t>::max();
  if (!fits) return std::numeric_limits<double>::infinity();
  return double(shape.q_len) * gather_row_cost(pairs / double(shape.q_len), shape.k_len);
}

struct Costed {
  PartKey key;
  double cost;
};

// The cheapest form of one term.
Costed best_form(const NodePtr& term, const Shape& shape) {
  Costed best{{PartForm::tiles, 1}, tiles_cost(*term, shape, 1)};
  const int64_t stride = stride_of(term);
  // With more classes than queries or keys, most would be empty.
  if (stride > 1 && stride <= std::max(shape.q_len, shape.k_len)) {
    const double cost = tiles_cost(*term, shape, stride);
    if (cost < best.cost) best = {{PartForm::tiles, stride}, cost};
  }
  const double cost = gather_cost(*term, shape);
  if (cost < best.cost) best = {{PartForm::gather, 1}, cost};
  return best;
}

// Groups terms of equal form, plain tiles first; each without the pairs of those before it.
std::vector<Term> make_disjoint(const std::vector<NodePtr>& terms,
                                const std::vector<Costed>& forms) {
  std::vector<PartKey> keys;
  for (const Costed& form : forms) {
    if (std::find(keys.begin(), keys.end(), form.key) == keys.end()) keys.push_back(form.key);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<Term> parts;
  std::vector<NodePtr> before;
  for (const PartKey& key : keys) {
    std::vector<NodePtr> own;
    for (size_t i = 0; i < terms.size(); ++i) {
      if (forms[i].key == key) own.push_back(terms[i]);
    }
    const NodePtr node = any_of(own);
    parts.push_back({key, before.empty() ? node : make_and(node, make_not(any_of(before)))});
    before.push_back(node);
  }
  return parts;
}

// The choice by cost; `node` is simplified.
std::vector<Term> split_by_cost(const NodePtr& node, const Shape& shape) {
  const std::vector<Term> plain = {{{PartForm::tiles, 1}, node}};
  const double whole_cost = tiles_cost(*node, shape, 1);
  // Nothing to gain: a handful of tiles (or a sample that found none), or tiles that are mostly
  // full.
  if (whole_cost <= kSmallPlan) return plain;
  if (whole_cost <= kMostlyFull * estimate_pairs(*node, shape)) return plain;

  const std::vector<NodePtr> terms = terms_of(node);
  std::vector<Costed> forms;
  double split_cost = 0;
  for (const NodePtr& term : terms) {
    forms.push_back(best_form(term, shape));
    split_cost += forms.back().cost;
  }
  std::vector<Term> parts = make_disjoint(terms, forms);
  split_cost += double(parts.size() - 1) * kMergeRowCost * double(shape.q_len);
  const Costed one = terms.size() == 1 ? forms.front() : best_form(node, shape);
  if (one.cost <= split_cost) return {{one.key, node}};
  return parts;
}

std::vector<Term> split_by_force(const NodePtr& node, const Shape& shape, SplitPolicy policy) {
  if (policy == SplitPolicy::plain) return {{{PartForm::tiles, 1}, node}};
  if (policy == SplitPolicy::gather) return {{{PartForm::gather, 1}, node}};
  const std::vector<NodePtr> terms = terms_of(node);
  std::vector<Costed> forms;
  for (size_t i = 0; i < terms.size(); ++i) {
    const int64_t stride = stride_of(terms[i]);
    if (stride > 1 && stride <= std::max(shape.q_len, shape.k_len)) {
      forms.push_back({{PartForm::tiles, stride}, 0});
    } else {
      const bool is_gathered = policy == SplitPolicy::mixed && i % 2 == 1;
      forms.push_back({{is_gathered ? PartForm::gather : PartForm::tiles, 1}, 0});
    }
  }
  return make_disjoint(terms, forms);
}

}  // namespace

double gather_row_cost(double pairs_per_query, int64_t k_len) {
  constexpr double kQuery = 20, kNearPair = 6, kFarPair = 9;
  constexpr int64_t kNearKeys = 4096;
  return kQuery + pairs_per_query * (k_len <= kNearKeys ? kNearPair : kFarPair);
}

std::vector<Term> split_head(const NodePtr& resolved, const Shape& shape, SplitPolicy policy) {
  if (shape.q_len == 0 || shape.k_len == 0) return {};
  const NodePtr node = simplify(resolved);
  return policy == SplitPolicy::by_cost ? split_by_cost(node, shape)
                                        : split_by_force(node, shape, policy);
}

std::vector<PartSpec> split_parts(const Pattern& pattern, const Shape& shape, SplitPolicy policy) {
  struct Distinct {
    NodePtr node;
    std::string text;  // empty until needed
    std::vector<Term> terms;
  };
  std::vector<Distinct> distinct;
  std::vector<PartSpec> parts;
  const int64_t heads = checked_mul(shape.batch, shape.heads, "plan: batch x heads");
  std::vector<size_t> distinct_of;
  for (int64_t i = 0; i < heads; ++i) {
    const NodePtr node = pattern.for_head(shape, i / shape.heads, i % shape.heads).node();
    size_t found = 0;
    while (found < distinct.size() && distinct[found].node != node) ++found;
    if (found == distinct.size() && !node->is_opaque() && !distinct.empty()) {
      const std::string text = node->text();
      for (found = 0; found < distinct.size(); ++found) {
        if (distinct[found].node->is_opaque()) continue;
        if (distinct[found].text.empty()) distinct[found].text = distinct[found].node->text();
        if (distinct[found].text == text) break;
      }
    }
    if (found == distinct.size()) distinct.push_back({node, {}, split_head(node, shape, policy)});
    distinct_of.push_back(found);
  }
  // One part per (form, stride). A head without such a term has no lists in it.
  for (size_t d = 0; d < distinct.size(); ++d) {
    for (const Term& term : distinct[d].terms) {
      auto part = std::find_if(parts.begin(), parts.end(),
                               [&](const PartSpec& spec) { return spec.key == term.key; });
      if (part == parts.end()) {
        parts.push_back({term.key, {}, std::vector<int32_t>(size_t(heads), -1)});
        part = parts.end() - 1;
      }
      part->group_nodes.push_back(term.node);
      for (size_t i = 0; i < distinct_of.size(); ++i) {
        if (distinct_of[i] == d) part->group_of[i] = int32_t(part->group_nodes.size() - 1);
      }
    }
  }
  std::sort(parts.begin(), parts.end(),
            [](const PartSpec& a, const PartSpec& b) { return a.key < b.key; });
  return parts;
}

}  // namespace keyhole
