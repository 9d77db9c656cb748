// src/pattern/leaves/block_band.h
// Blocks of `size` positions that see the blocks at most `radius` away.
#pragma once

#include "keyhole/pattern.h"

namespace keyhole {

NodePtr make_block_band(int64_t size, int64_t radius);  // (radius + 1) * size must fit kUnbounded

}  // namespace keyhole
