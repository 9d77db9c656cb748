// src/judge/layout.h
// Layouts of tensors that callers pass. Each has broken somebody's kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "judge/placement.h"

namespace keyhole::judge {

enum class Layout : uint8_t {
  contiguous,
  bshd,            // heads inside length, as models keep them
  padded,          // rows longer than head_dim by an odd count: rows are not aligned
  sliced,          // every other row of a larger tensor
  odd_offset,      // begins one element after an aligned address
  expanded_heads,  // stride 0 over heads (inputs only)
  expanded_batch,  // stride 0 over batch entries (inputs only)
  odd_strides,     // dimensions of size 1 have meaningless strides
};
inline constexpr int kNumLayouts = int(Layout::odd_strides) + 1;

// `shape` has 4 dimensions, or 3 (lse), or 1 (sink).
Placement place(DType dtype, const std::vector<int64_t>& shape, Layout layout);

}  // namespace keyhole::judge
