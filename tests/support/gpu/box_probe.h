// tests/support/gpu/box_probe.h
// Boxes of a tensor as TMA delivers them, one after the other: what sm90 kernels multiply.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/sm90/tensor_maps.h"

namespace keyhole::test {

struct BoxPlace {
  int32_t column, row, first, head, batch;  // row `row` of the class that begins at index `first`
};

// [places][rows][64], row by row; waits. A box that does not arrive is full of kNoBox.
inline constexpr uint16_t kNoBox = 0xdead;
std::vector<uint16_t> read_boxes(const sm90::RowMaps& maps, int rows,
                                 const std::vector<BoxPlace>& places);

}  // namespace keyhole::test
