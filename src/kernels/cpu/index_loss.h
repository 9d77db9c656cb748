// src/kernels/cpu/index_loss.h
#pragma once

#include "kernels/select_contract.h"

namespace keyhole::cpu {

// T: float, or double for an indexer of f64.
template <class T>
void index_loss_forward(const IndexLossArgs& args);
template <class T>
void index_loss_backward(const IndexGradientArgs& args);

}  // namespace keyhole::cpu
