// src/pattern/leaves/listed_cells.h
// A leaf whose cells are listed row by row: what tiles and csr (cells of one pair) have in common.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "pattern/leaves/cells.h"
#include "pattern/leaves/sizes_of_rows.h"
#include "pattern/leaves/sorted_rows.h"

namespace keyhole {

class ListedCells final : public Cells {
 public:
  // `made_by` and `way_out` are texts of the program: see KnownSizes.
  ListedCells(int64_t cell_q, int64_t cell_k, SortedRows rows, std::string text,
              std::string_view made_by, std::string_view way_out)
      : Cells(cell_q, cell_k),
        rows_(std::move(rows)),
        text_(std::move(text)),
        made_by_(made_by),
        way_out_(way_out) {}

  std::string text() const override { return text_; }
  std::optional<KnownSizes> sizes() const override {
    return sizes_of_rows(made_by_, way_out_, rows_.num_rows(), cell_q(), rows_.last_key(),
                         cell_k());
  }

 private:
  bool has_cell(int64_t q_cell, int64_t k_cell) const override {
    return rows_.contains(q_cell, k_cell);
  }
  void list_cells(int64_t q_cell, Span within, std::vector<int64_t>& out) const override {
    rows_.list(q_cell, within, out);
  }
  uint64_t cell_word(int64_t q_cell, Span within) const override {
    return rows_.word(q_cell, within);
  }
  Span rows_of_cells() const override { return {0, rows_.num_rows()}; }

  SortedRows rows_;
  std::string text_;
  std::string_view made_by_, way_out_;
};

}  // namespace keyhole
