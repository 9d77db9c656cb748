// tests/support/expression.h
// A pattern as the harness writes it: a tree of names, numbers and children. Unlike a Pattern it
// can be taken apart and made smaller, and every array (csr, mask, positions) is named by the few
// numbers it is drawn from, so that one line of text reproduces it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "keyhole/pattern.h"

namespace keyhole::test {

struct Expression {
  std::string name;
  std::vector<int64_t> numbers;
  std::vector<Expression> children;
  bool operator==(const Expression&) const = default;
};

// and(window(3,inf),not(causal)): no blanks, numbers before children.
std::string to_text(const Expression& expression);
Expression parse_expression(std::string_view text);  // throws Error(usage)

// Nodes that are not a name and numbers of the catalog:
//   and(a,b) or(a,b) not(a)
//   per_head(a,b,...), per_batch(a,b,...)     entry i takes child i modulo their number
//   at(rank,order,seed,a)                     positions [length], [batch,length] or
//                                             [batch,heads,length]
//   packed(documents,seed,a)                  a must hold nothing that knows its lengths: documents
//                                             differ in theirs
//   csr(percent,seed)  mask(percent,seed)
//   tiles(tile_q,tile_k,percent,seed)
//   bitmaps(tile_q,tile_k,percent,seed,bitmaps)
//   lambda(a,b,modulus)                       (a q + b k) mod modulus == 0
// What knows its lengths is made for k_len positions: arrays are drawn so, documents and trees are
// cut short or go on, and a grid keeps the widest row that fits. So a smaller shape leaves an
// expression valid.
Pattern build(const Expression& expression, const Shape& shape);

int64_t count_nodes(const Expression& expression);

}  // namespace keyhole::test
