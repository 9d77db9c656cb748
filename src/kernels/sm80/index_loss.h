// src/kernels/sm80/index_loss.h
// The index loss and its gradients on tensor cores.
#pragma once

#include "kernels/select_contract.h"

namespace keyhole::sm80 {

template <DType kType>
void run_index_loss(const IndexLossArgs& args);
template <DType kType>
void run_index_gradients(const IndexGradientArgs& args);

// Their scratch memory: less than 512 MiB for any q_len, unless one query or dk needs more.
int64_t index_loss_bytes(const IndexLossArgs& args);
int64_t index_gradient_bytes(const IndexGradientArgs& args);

}  // namespace keyhole::sm80
