// src/pattern/smallest_shape.h
// The shape with the fewest heads and batch entries for which a pattern makes sense, for pictures
// and counts, whose callers give lengths only.
#pragma once

#include "keyhole/pattern.h"

namespace keyhole {

Shape smallest_shape(const Pattern& pattern, int64_t q_len, int64_t k_len);

}  // namespace keyhole
