// cli/kept_pairs.h
// The second layer of a picture: which pairs of a pattern keep weight by entmax or top_k, measured;
// or which of them a selection chose, from a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.h"

namespace keyhole::cli {

inline constexpr int64_t kLongestMeasured = 8192;  // a few seconds

// Attention on normally distributed q and k is computed, and its weights are recorded: one head of
// one batch entry, in fp32. q and k are drawn for that head alone, from the seed.
KeptPairs measured_support(const Pattern& pattern, const Shape& shape, int64_t batch, int64_t head,
                           const Normalizer& normalizer, int64_t head_dim, int64_t seed);

struct ChosenLists {
  std::string path;
  int64_t batch, groups, q_len, k;
  std::vector<int64_t> keys;  // [batch, groups, q_len, k], -1: padding
};

// From a .npy file, as np.save writes keyhole.select_keys' result: int32 or int64, of shape [batch,
// groups, q_len, k] or [q_len, k].
ChosenLists read_chosen(const std::string& path);

// The lengths, batch entries and heads of these lists, with the keys of the options. Throws
// Error(usage) when the options say something else.
Shape shape_of_chosen(const ChosenLists& chosen, ShapeOptions options, const Pattern& pattern);

// The pairs of one head, which has the lists of its group. Throws Error(usage) for a key that does
// not exist, is listed twice, or is not visible.
KeptPairs chosen_pairs(const ChosenLists& chosen, const Pattern& visible, const Shape& shape,
                       int64_t batch, int64_t head);

}  // namespace keyhole::cli
