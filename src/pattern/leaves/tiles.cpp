// src/pattern/leaves/tiles.cpp
// tiles(tile_q, tile_k, offsets, keys): a block-sparse matrix (BSR); query tile i attends to the
// key tiles keys[offsets[i] .. offsets[i + 1]), in any order. What lies outside the array does not
// attend.
//
//   tiles(2, 2, {0, 1, 3}, {1, 0, 1}) on 4 tokens     . . # #
//                                                     . . # #
//                                                     # # # #
//                                                     # # # #
#include "base/check.h"
#include "pattern/leaves/listed_cells.h"

namespace keyhole {

Pattern tiles(int64_t tile_q, int64_t tile_k, std::vector<int64_t> offsets,
              std::vector<int64_t> keys) {
  KEYHOLE_CHECK(tile_q >= 1 && tile_q <= kUnbounded && tile_k >= 1 && tile_k <= kUnbounded,
                "tiles: the tile is ", tile_q, " x ", tile_k, "; both sides must be 1 or more");
  SortedRows rows("tiles", offsets, std::move(keys), kUnbounded / tile_k - 1);
  std::string text = say("tiles(<", tile_q, "x", tile_k, ", ", rows.num_rows(), " rows, ",
                         rows.num_keys(), " tiles #", rows.hash_text(), ">)");
  return Pattern(
      std::make_shared<ListedCells>(tile_q, tile_k, std::move(rows), std::move(text), "tiles",
                                    "give a row of tiles for every tile_q positions; where row 0 "
                                    "begins with query 0, use from_bsr, or a plan with offset 0"));
}

}  // namespace keyhole
