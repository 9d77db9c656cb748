// src/pattern/made_for.h
// A pattern that came from another library's mask, and is for the sizes of that mask alone.
#pragma once

#include <string>

#include "keyhole/pattern.h"

namespace keyhole {

struct MaskSizes {
  int64_t q_len = 0, k_len = 0;
  int64_t batch = 1, heads = 1;  // 1: any number
};

// Where q_len and k_len are equal, rows are positions, and fewer queries are the last ones, as for
// every pattern; else row i is query i. `made_by` is the function that the user called: errors and
// texts name it, not the leaves that it was turned into. parse() does not read the text.
Pattern made_for(std::string made_by, const MaskSizes& sizes, const Pattern& pattern);

}  // namespace keyhole
