// src/pattern/leaves/lattice.h
// Positions as the points of a box of two or more axes, read row by row, where a query sees the
// points near it along every axis. grid, volume, neighborhood and volume_neighborhood are made of
// it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "keyhole/pattern.h"

namespace keyhole {

struct Axis {
  std::string_view name;  // "height", for errors
  int64_t size = 1, radius = 0;
};

enum class Border : uint8_t {
  cut,  // a query near a border sees fewer points
  // Its window is moved inward and keeps its size, as NATTEN's neighbourhood attention has it. Of 6
  // points along an axis, with radius 1, they see   # # # . . .   # # # . . .   . # # # . .
  //                                                 . . # # # .   . . . # # #   . . . # # #
  shift,
};

// Prints as name(size, size, ..., radius, radius, ...), the slowest axis first. Throws Error(usage)
// for sizes below 1, radii below 0, and more points than positions.
Pattern lattice(std::string_view name, Border border, std::vector<Axis> axes);

}  // namespace keyhole
