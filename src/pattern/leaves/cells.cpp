// src/pattern/leaves/cells.cpp
// Strips, signatures and bitmaps of leaves that are constant on the cells of a grid.
#include "pattern/leaves/cells.h"

#include <algorithm>
#include <bit>

#include "pattern/leaves/segments.h"

namespace keyhole {
namespace {

// Calls visit(cell, count) for each distinct cell of `cells`, ascending. Counting in place is
// faster than sorting once the cells fill a fair part of their range.
template <class Visit>
void for_each_count(std::vector<int64_t>& cells, Span range, Visit visit) {
  if (int64_t(cells.size()) > range.size() / 8) {
    std::vector<int32_t> counts(size_t(range.size()));
    for (const int64_t cell : cells) ++counts[size_t(cell - range.begin)];
    for (int64_t i = 0; i < range.size(); ++i) {
      if (counts[size_t(i)] > 0) visit(range.begin + i, int64_t{counts[size_t(i)]});
    }
    return;
  }
  std::sort(cells.begin(), cells.end());
  for (auto first = cells.begin(); first != cells.end();) {
    const auto last =
        std::find_if(first, cells.end(), [&](int64_t cell) { return cell != *first; });
    visit(*first, int64_t(last - first));
    first = last;
  }
}

}  // namespace

void Cells::strip(Span q, Span k, Position grain, Strip& out) const {
  const Span rows = cells_of(q, cell_q_), columns = cells_of(k, cell_k_);
  if (rows.is_empty() || columns.is_empty()) return;
  Strip exact;
  const auto see = [&](int64_t cell, int64_t count) {
    append_inside(k, cell * cell_k_, cell * cell_k_ + cell_k_,
                  count == rows.size() ? Cover::all : Cover::some, exact);
  };
  const Span listed = intersect(rows, rows_of_cells());
  std::vector<int64_t> cells;
  for (int64_t row = listed.begin; row < listed.end; ++row) list_cells(row, columns, cells);
  if (listed.size() == 1) {
    for (const int64_t cell : cells) see(cell, 1);
  } else {
    for_each_count(cells, columns, see);
  }
  append_blurred(exact, grain, out);
}

Cover Cells::cover(const Rect& rect) const {
  const Span rows = cells_of(rect.q, cell_q_), columns = cells_of(rect.k, cell_k_);
  if (rows.size() > 64 || columns.size() > 64) return Node::cover(rect);
  const Span listed = intersect(rows, rows_of_cells());
  uint64_t any = 0, every = rows == listed ? ~uint64_t{0} : 0;
  for (int64_t row = listed.begin; row < listed.end; ++row) {
    const uint64_t word = cell_word(row, columns);
    any |= word, every &= word;
  }
  if (any == 0) return Cover::none;
  return std::popcount(every) == columns.size() ? Cover::all : Cover::some;
}

// Where the first cell borders lie, then one word per row of cells: a bit per cell that attends.
bool Cells::sign(const Rect& rect, Signature& signature) const {
  const Span rows = cells_of(rect.q, cell_q_), columns = cells_of(rect.k, cell_k_);
  if (rows.size() > 64 || columns.size() > 64) return false;
  signature.add(std::min(rect.q.size(), rows.begin * cell_q_ + cell_q_ - rect.q.begin));
  signature.add(std::min(rect.k.size(), columns.begin * cell_k_ + cell_k_ - rect.k.begin));
  const Span listed = rows_of_cells();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const bool is_listed = listed.begin <= row && row < listed.end;
    signature.add(is_listed ? int64_t(cell_word(row, columns)) : 0);
  }
  return true;
}

void Cells::draw(const Rect& rect, BitRows& bits) const {
  const Span rows = intersect(cells_of(rect.q, cell_q_), rows_of_cells());
  const Span columns = cells_of(rect.k, cell_k_);
  std::vector<int64_t> cells;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    cells.clear();
    list_cells(row, columns, cells);
    if (cells.empty()) continue;
    const Span q = intersect(rect.q, {row * cell_q_, row * cell_q_ + cell_q_});
    uint64_t* first = bits.row(int32_t(q.begin - rect.q.begin));
    for (const int64_t cell : cells) {
      const Span k = intersect(rect.k, {cell * cell_k_, cell * cell_k_ + cell_k_});
      set_bits(first, k.begin - rect.k.begin, k.end - rect.k.begin);
    }
    for (int64_t i = 1; i < q.size(); ++i)
      std::copy_n(first, bits.words(), first + i * bits.words());
  }
}

}  // namespace keyhole
