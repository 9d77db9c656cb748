// src/kernels/simple/index_loss.h
// The index loss and its gradients on any GPU: any head counts, head_dim and strides. Nothing is
// added up in an order that could differ between two runs.
#pragma once

#include "kernels/select_contract.h"

namespace keyhole::simple {

void run_index_loss(const IndexLossArgs& args);
void run_index_gradients(const IndexGradientArgs& args);

// Their scratch memory, less than 512 MiB for any q_len.
int64_t index_loss_bytes(const IndexLossArgs& args);
int64_t index_gradient_bytes(const IndexGradientArgs& args);

}  // namespace keyhole::simple
