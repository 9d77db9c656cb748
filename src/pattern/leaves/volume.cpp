// src/pattern/leaves/volume.cpp
// volume and volume_neighborhood (depth, height, width, depth_radius, row_radius, column_radius):
// positions are the points of a volume, or the pixels of a video, frame by frame and row by row; a
// query sees those near it along all three axes. At a border, volume cuts the window and
// volume_neighborhood shifts it. Positions outside the volume take no part.
#include "pattern/leaves/lattice.h"

namespace keyhole {
namespace {

std::vector<Axis> box(int64_t depth, int64_t height, int64_t width, int64_t depth_radius,
                      int64_t row_radius, int64_t column_radius) {
  return {{"depth", depth, depth_radius},
          {"height", height, row_radius},
          {"width", width, column_radius}};
}

}  // namespace

Pattern volume(int64_t depth, int64_t height, int64_t width, int64_t depth_radius,
               int64_t row_radius, int64_t column_radius) {
  return lattice("volume", Border::cut,
                 box(depth, height, width, depth_radius, row_radius, column_radius));
}

Pattern volume_neighborhood(int64_t depth, int64_t height, int64_t width, int64_t depth_radius,
                            int64_t row_radius, int64_t column_radius) {
  return lattice("volume_neighborhood", Border::shift,
                 box(depth, height, width, depth_radius, row_radius, column_radius));
}

}  // namespace keyhole
