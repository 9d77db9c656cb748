// src/api/check_lists.h
// Checks that lists match q and k: a plan by its lengths and heads, tensors of a caller by their
// device, sizes and strides. The runtime checks their entries, on the device where they are.
#pragma once

#include <utility>
#include <vector>

#include "keyhole/attention.h"

namespace keyhole {

// Throws Error(usage) that names `who`, as check_arguments.h does. q and k have been checked.
void check_lists(const char* who, const Lists& lists, const TensorView& q, const TensorView& k);

// Checks options.support, if it is given.
void check_support(const AttentionOptions& options, const TensorView& q);

// The memory of a caller's lists, by name, as TensorViews: only for checks of memory.
std::vector<std::pair<TensorView, const char*>> memory_of(const Lists& lists);
TensorView memory_of(const IndexView& indices);

}  // namespace keyhole
