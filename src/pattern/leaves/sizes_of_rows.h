// src/pattern/leaves/sizes_of_rows.h
// What tiles, bitmaps and csr (tiles of one pair) know of the calls they are for: how many rows
// there are, and that the keys they list exist. They do not know the number of keys.
#pragma once

#include "pattern/node.h"

namespace keyhole {

// `last_key` is the largest key tile of all; -1 where none is listed.
inline KnownSizes sizes_of_rows(std::string_view made_by, std::string_view way_out, int64_t rows,
                                int64_t tile_q, int64_t last_key, int64_t tile_k) {
  int64_t most_q;
  if (__builtin_mul_overflow(rows, tile_q, &most_q)) most_q = kUnbounded;
  return {.made_by = made_by,
          .way_out = way_out,
          .most_q = most_q,
          .least_k = last_key < 0 ? 0 : last_key * tile_k + 1,
          .least_q = rows == 0 ? 0 : most_q - tile_q + 1};
}

}  // namespace keyhole
