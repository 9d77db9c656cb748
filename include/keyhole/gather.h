// include/keyhole/gather.h
// Older names for attention over an index tensor. attention_forward and attention_backward take an
// index tensor like any other lists.
#pragma once

#include "keyhole/attention.h"

namespace keyhole {

using GatherOptions = AttentionOptions;

inline void gather_attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                                     const IndexView& indices, const TensorView& out,
                                     const TensorView& lse = {},
                                     const AttentionOptions& options = {}) {
  attention_forward(q, k, v, indices, out, lse, options);
}
inline void gather_attention_backward(const TensorView& dout, const TensorView& q,
                                      const TensorView& k, const TensorView& v,
                                      const TensorView& out, const TensorView& lse,
                                      const IndexView& indices, const Gradients& gradients,
                                      const AttentionOptions& options = {}) {
  attention_backward(dout, q, k, v, out, lse, indices, gradients, options);
}

}  // namespace keyhole
