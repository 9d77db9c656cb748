// src/api/check_indices.h
// What an index tensor must be: place, sizes and strides. What its entries say is looked at where
// they lie, by the runtime.
#pragma once

#include "keyhole/gather.h"
#include "plan/view.h"

namespace keyhole {

// Throws Error(usage) as check_arguments.h does. q and k have been checked.
void check_indices(const IndexView& indices, const TensorView& q, const TensorView& k);

// The same as TensorView: for questions of memory alone.
TensorView memory_of(const IndexView& indices);

// As kernels follow it. Checked.
GatherView lists_of(const IndexView& indices, const TensorView& q, const TensorView& k);

}  // namespace keyhole
