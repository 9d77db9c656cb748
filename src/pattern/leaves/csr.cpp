// src/pattern/leaves/csr.cpp
// csr(offsets, keys): a sparse matrix row by row; query i attends to keys[offsets[i] .. offsets[i +
// 1]), in any order. What lies outside the array does not attend.
//
//   csr({0, 1, 1, 3}, {0, 2, 0}) on 3 tokens     # . .
//                                                . . .
//                                                # . #
#include "pattern/leaves/cells.h"
#include "pattern/leaves/sorted_rows.h"

namespace keyhole {
namespace {

class Csr final : public Cells {
 public:
  explicit Csr(SortedRows rows) : Cells(1, 1), rows_(std::move(rows)) {}

  std::string text() const override {
    return say("csr(<", rows_.num_rows(), " rows, ", rows_.num_keys(), " pairs #",
               rows_.hash_text(), ">)");
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
};

}  // namespace

Pattern csr(std::vector<int64_t> offsets, std::vector<int64_t> keys) {
  return Pattern(std::make_shared<Csr>(SortedRows("csr", offsets, std::move(keys), kUnbounded)));
}

}  // namespace keyhole
