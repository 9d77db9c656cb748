// src/pattern/leaves/grid.cpp
// grid and neighborhood (height, width, row_radius, column_radius): positions are the pixels of an
// image, row by row; a query attends to the pixels near it in both directions. At a border, grid
// cuts the window and neighborhood shifts it. Positions outside the image take no part.
//
//   grid(2, 3, 1, 1): what pixel 1 of     0 1 2     # # # # # #
//                                         3 4 5     sees, and pixel 3:  # # . # # .
#include "pattern/leaves/lattice.h"

namespace keyhole {
namespace {

std::vector<Axis> image(int64_t height, int64_t width, int64_t row_radius, int64_t column_radius) {
  return {{"height", height, row_radius}, {"width", width, column_radius}};
}

}  // namespace

Pattern grid(int64_t height, int64_t width, int64_t row_radius, int64_t column_radius) {
  return lattice("grid", Border::cut, image(height, width, row_radius, column_radius));
}

Pattern neighborhood(int64_t height, int64_t width, int64_t row_radius, int64_t column_radius) {
  return lattice("neighborhood", Border::shift, image(height, width, row_radius, column_radius));
}

}  // namespace keyhole
