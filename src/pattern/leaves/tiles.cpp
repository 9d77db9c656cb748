// src/pattern/leaves/tiles.cpp
// tiles(tile_q, tile_k, offsets, keys): a block-sparse matrix (BSR); query tile i attends to the
// key tiles keys[offsets[i] .. offsets[i + 1]), in any order. What lies outside the array does not
// attend.
//
//   tiles(2, 2, {0, 1, 3}, {1, 0, 1}) on 4 tokens     . . # #
//                                                     . . # #
//                                                     # # # #
//                                                     # # # #
#include "pattern/leaves/cells.h"
#include "pattern/leaves/sorted_rows.h"

namespace keyhole {
namespace {

class Tiles final : public Cells {
 public:
  Tiles(int64_t tile_q, int64_t tile_k, SortedRows rows)
      : Cells(tile_q, tile_k), rows_(std::move(rows)) {}

  std::string text() const override {
    return say("tiles(<", cell_q(), "x", cell_k(), ", ", rows_.num_rows(), " rows, ",
               rows_.num_keys(), " tiles #", rows_.hash_text(), ">)");
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

Pattern tiles(int64_t tile_q, int64_t tile_k, std::vector<int64_t> offsets,
              std::vector<int64_t> keys) {
  KEYHOLE_CHECK(tile_q >= 1 && tile_q <= kUnbounded && tile_k >= 1 && tile_k <= kUnbounded,
                "tiles: the tile is ", tile_q, " x ", tile_k, "; both sides must be 1 or more");
  return Pattern(std::make_shared<Tiles>(
      tile_q, tile_k, SortedRows("tiles", offsets, std::move(keys), kUnbounded / tile_k - 1)));
}

}  // namespace keyhole
