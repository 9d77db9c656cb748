// src/pattern/leaves/neighborhood.cpp
// Neighbourhood attention, as NATTEN defines it, over an image and over a volume: like grid and
// volume, but near a border the window is shifted inward, so that every query sees 2 * radius + 1
// points along each axis, or all where there are fewer.
//
//   one axis of 6 points, radius 1:   # # # . . .
//                                     # # # . . .
//                                     . # # # . .
//                                     . . # # # .
//                                     . . . # # #
//                                     . . . # # #
#include "pattern/leaves/lattice.h"

namespace keyhole {

Pattern neighborhood(int64_t height, int64_t width, int64_t row_radius, int64_t column_radius) {
  return lattice("neighborhood", Border::shift,
                 {{"height", height, row_radius}, {"width", width, column_radius}});
}

Pattern volume_neighborhood(int64_t depth, int64_t height, int64_t width, int64_t depth_radius,
                            int64_t row_radius, int64_t column_radius) {
  return lattice("volume_neighborhood", Border::shift,
                 {{"depth", depth, depth_radius},
                  {"height", height, row_radius},
                  {"width", width, column_radius}});
}

}  // namespace keyhole
