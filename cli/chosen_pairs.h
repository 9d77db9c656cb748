// cli/chosen_pairs.h
// What a selection chose: lists of keys from a .npy file, as np.save writes keyhole.select_keys'
// result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/common.h"

namespace keyhole::cli {

struct ChosenLists {
  std::string path;
  int64_t batch, groups, q_len, k;
  std::vector<int64_t> keys;  // [batch, groups, q_len, k], -1: padding
};

// int32 or int64, of shape [batch, groups, q_len, k] or [q_len, k].
ChosenLists read_chosen(const std::string& path);

// The lengths, batch entries and heads of these lists, with the keys of the options. Throws
// Error(usage) when the options say something else.
Shape shape_of_chosen(const ChosenLists& chosen, ShapeOptions options, const Pattern& pattern);

// The pairs of one head, which has the lists of its group. Throws Error(usage) for a key that does
// not exist, is listed twice, or is not visible.
KeptPairs chosen_pairs(const ChosenLists& chosen, const Pattern& visible, const Shape& shape,
                       int64_t batch, int64_t head);

}  // namespace keyhole::cli
