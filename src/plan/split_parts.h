// src/plan/split_parts.h
// Splits a pattern into disjoint parts, each in the coordinates and the form that make it cheap:
// plain tiles, tiles inside residue classes, or lists of keys.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "keyhole/pattern.h"
#include "keyhole/plan.h"

namespace keyhole {

// What gathering costs, in pairs computed in a large tile: some for every query, and for each pair
// what fetching its rows for one query alone takes, which grows as keys and values outgrow the
// caches. From sweeps (`keyhole bench sweep`), whose patterns gather at 4 to 6 for 2,048 keys and
// at 3 (the same few keys for all) to 25 (scattered) for 131,072.
double gather_row_cost(double pairs_per_query, int64_t k_len);

enum class PartForm : uint8_t { tiles, gather };

struct PartKey {
  PartForm form = PartForm::tiles;
  int64_t stride = 1;  // > 1: the pattern holds only inside residue classes modulo stride
  auto operator<=>(const PartKey&) const = default;
};

// One part of a plan before any list is made: the pattern of each group of heads.
struct PartSpec {
  PartKey key;
  std::vector<NodePtr> group_nodes;  // resolved; in plain coordinates whatever the stride
  std::vector<int32_t> group_of;  // [batch * heads] -> group, or -1: nothing of this head is here
};

// How the form of a term is chosen. Users get by_cost. The others force every form at every size,
// so that tests reach all of them on small shapes.
enum class SplitPolicy : uint8_t {
  by_cost,
  plain,     // one part of plain tiles
  residues,  // dilated terms in residue classes, the rest in plain tiles
  gather,    // one part of key lists
  mixed,     // dilated terms in residue classes; of the others every second one as key lists
};

// The parts of a pattern for a shape. Equal heads are found before anything is compiled.
std::vector<PartSpec> split_parts(const Pattern& pattern, const Shape& shape,
                                  SplitPolicy policy = SplitPolicy::by_cost);

// One term of one head's pattern.
struct Term {
  PartKey key;
  NodePtr node;
};
std::vector<Term> split_head(const NodePtr& resolved, const Shape& shape,
                             SplitPolicy policy = SplitPolicy::by_cost);

}  // namespace keyhole
