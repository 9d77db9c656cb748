// src/pattern/leaves/csr.cpp
// csr(offsets, keys): a sparse matrix row by row; query i attends to keys[offsets[i] .. offsets[i +
// 1]), in any order. What lies outside the array does not attend.
//
//   csr({0, 1, 1, 3}, {0, 2, 0}) on 3 tokens     # . .
//                                                . . .
//                                                # . #
#include "base/check.h"
#include "pattern/leaves/listed_cells.h"

namespace keyhole {

Pattern csr(std::vector<int64_t> offsets, std::vector<int64_t> keys) {
  SortedRows rows("csr", offsets, std::move(keys), kUnbounded);
  std::string text =
      say("csr(<", rows.num_rows(), " rows, ", rows.num_keys(), " pairs #", rows.hash_text(), ">)");
  return Pattern(std::make_shared<ListedCells>(1, 1, std::move(rows), std::move(text), "csr",
                                               "give a row for each position; where row 0 is query "
                                               "0, use from_csr, or a plan with offset 0"));
}

}  // namespace keyhole
