// src/pattern/leaves/cells.h
// A leaf that is constant on the cells of a grid, cell_q queries by cell_k keys: it says which
// cells attend, and all other questions are answered here. random, tiles and csr (1 x 1 cells) are
// such.
#pragma once

#include <vector>

#include "base/int_math.h"
#include "pattern/node.h"

namespace keyhole {

class Cells : public Node {
 public:
  bool allows(Position q, Position k) const final {
    return has_cell(floor_div(q, cell_q_), floor_div(k, cell_k_));
  }
  void strip(Span q, Span k, Position grain, Strip& out) const override;
  Cover cover(const Rect& rect) const final;
  bool sign(const Rect& rect, Signature& signature) const final;
  void draw(const Rect& rect, BitRows& bits) const final;

 protected:
  Cells(int64_t cell_q, int64_t cell_k) : cell_q_(cell_q), cell_k_(cell_k) {}

  virtual bool has_cell(int64_t q_cell, int64_t k_cell) const = 0;
  // Appends the key cells of one row of cells that lie inside `within`, ascending.
  virtual void list_cells(int64_t q_cell, Span within, std::vector<int64_t>& out) const = 0;
  // The same of at most 64 key cells: bit i is cell within.begin + i.
  virtual uint64_t cell_word(int64_t q_cell, Span within) const = 0;
  // The rows of cells that may have any; the others are not asked for.
  virtual Span rows_of_cells() const = 0;

  static Span cells_of(Span positions, int64_t cell) {
    if (positions.is_empty()) return {};
    return {floor_div(positions.begin, cell), floor_div(positions.end - 1, cell) + 1};
  }
  int64_t cell_q() const { return cell_q_; }
  int64_t cell_k() const { return cell_k_; }

 private:
  int64_t cell_q_, cell_k_;
};

}  // namespace keyhole
