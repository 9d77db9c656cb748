// src/plan/residues.h
// The coordinates of a part: queries and keys divided into residue classes modulo a stride. A plain
// part has stride 1.
//
//   stride 3, 7 keys      class 0: keys 0 3 6     class 1: keys 1 4     class 2: keys 2 5
#pragma once

#include <cstdint>
#include <vector>

#include "keyhole/pattern.h"
#include "pattern/strip.h"
#include "plan/view.h"

namespace keyhole {

// Class c holds the keys c, c + stride, ... and the queries whose position has the same residue.
inline ResidueClass residue_class(const Shape& shape, int64_t stride, int64_t c);

// Inside class c, positions count in steps of the stride: position p = c + stride * p' becomes p'.
// Returns p' of the class's first query.
inline int64_t class_offset(const Shape& shape, int64_t stride, int64_t c);

// ---

inline ResidueClass residue_class(const Shape& shape, int64_t stride, int64_t c) {
  const auto members = [stride](int64_t length, int64_t first) {
    return first < length ? (length - 1 - first) / stride + 1 : 0;
  };
  const int64_t offset = shape.q_offset();
  const int64_t first_q = ((c - offset) % stride + stride) % stride;
  return {first_q, members(shape.q_len, first_q), c, members(shape.k_len, c)};
}

inline int64_t class_offset(const Shape& shape, int64_t stride, int64_t c) {
  // first_q + offset has residue c, so the division is exact.
  return (residue_class(shape, stride, c).first_q + shape.q_offset() - c) / stride;
}

}  // namespace keyhole
