// src/api/check_lists.h
// What lists must be to fit q and k: a plan its lengths and heads, the tensors of a caller their
// place, sizes and strides. What their entries say is looked at where they lie, by the runtime.
#pragma once

#include <utility>
#include <vector>

#include "keyhole/lists.h"

namespace keyhole {

// Throws Error(usage) as check_arguments.h does. q and k have been checked.
void check_lists(const Lists& lists, const TensorView& q, const TensorView& k);

// The memory that lists of a caller are read from, by name, as TensorView: for questions of memory
// alone.
std::vector<std::pair<TensorView, const char*>> memory_of(const Lists& lists);

}  // namespace keyhole
