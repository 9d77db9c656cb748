// cli/measured_support.h
// Which pairs of a pattern keep weight by entmax or top_k: attention on normally distributed
// q and k is computed, and the weights are recorded.
#pragma once

#include "keyhole/normalizer.h"
#include "keyhole/pattern.h"
#include "render/picture.h"

namespace keyhole::cli {

inline constexpr int64_t kLongestMeasured = 8192;  // a few seconds

// One head of one batch entry, in fp32. q and k are drawn for that head alone, from the seed.
KeptPairs measured_support(const Pattern& pattern, const Shape& shape, int64_t batch, int64_t head,
                           const Normalizer& normalizer, int64_t head_dim, int64_t seed);

}  // namespace keyhole::cli
