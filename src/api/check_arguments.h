// src/api/check_arguments.h
// The one place where arguments of the public functions are checked; kernels then trust them.
#pragma once

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

// An output must not have two elements at the same address.
void check_output(const TensorView& tensor, const char* name);

// Does nothing if one of them was not given.
void check_no_overlap(const TensorView& output, const char* output_name, const TensorView& other,
                      const char* other_name);

}  // namespace keyhole
