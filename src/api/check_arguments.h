// src/api/check_arguments.h
// The one place where arguments of the public functions are checked; kernels then trust them.
#pragma once

#include "api/check_tensor.h"
#include "keyhole/attention.h"

namespace keyhole {

// Throws Error(usage or unsupported) before anything is written. The text says what was passed,
// what is accepted and the way out.
void check_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& out, const TensorView& lse, const AttentionOptions& options);
void check_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                    const TensorView& v, const TensorView& out, const TensorView& lse,
                    const Gradients& gradients, const AttentionOptions& options);
void check_merge(const TensorView& into_out, const TensorView& into_lse, const TensorView& from_out,
                 const TensorView& from_lse);

}  // namespace keyhole
