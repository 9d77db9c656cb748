// src/pattern/smallest_shape.h
// The shape with the fewest heads and batch entries for which a pattern makes sense, for pictures
// and counts, whose callers give lengths only.
#pragma once

#include <optional>

#include "keyhole/pattern.h"

namespace keyhole {

Shape smallest_shape(const Pattern& pattern, int64_t q_len, int64_t k_len);

struct Lengths {
  int64_t q_len, k_len;
};
// The lengths of the arrays that a pattern was made of, for pictures whose callers give none. Other
// lengths may fit as well: fewer queries than keys, say. Nothing where the pattern has none, or
// where `at` has them, whose arrays may be for one head or for many.
std::optional<Lengths> own_lengths(const Pattern& pattern);

}  // namespace keyhole
