// src/runtime/cuda/bitmap_layout.h
// Bitmaps as a kernel wants them to lie.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/contract.h"

namespace keyhole {

// All bitmaps of a part (host pointers), or those of its transposed tiles, in the mma layout.
std::vector<uint32_t> mma_bitmaps(const TileView& view, bool is_transposed);

}  // namespace keyhole
