// src/kernels/simple/forward.h
#pragma once

#include "kernels/contract.h"

namespace keyhole::simple {

inline constexpr TileShape kWideTile = {64, 64}, kNarrowTile = {32, 32};

// T is float, __half or __nv_bfloat16, by the dtype of the tensors.
template <DType kType>
void run_forward(const ForwardArgs& args);

}  // namespace keyhole::simple
