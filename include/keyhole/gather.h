// include/keyhole/gather.h
// Older names for attention over lists of keys. attention_forward and attention_backward take them
// like any other lists.
#pragma once

#include "keyhole/attention.h"

namespace keyhole {

using GatherOptions = AttentionOptions;

inline void gather_attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                                     const Lists& keys, const TensorView& out,
                                     const TensorView& lse = {},
                                     const AttentionOptions& options = {}) {
  attention_forward(q, k, v, keys, out, lse, options);
}
inline void gather_attention_backward(const TensorView& dout, const TensorView& q,
                                      const TensorView& k, const TensorView& v,
                                      const TensorView& out, const TensorView& lse,
                                      const Lists& keys, const Gradients& gradients,
                                      const AttentionOptions& options = {}) {
  attention_backward(dout, q, k, v, out, lse, keys, gradients, options);
}

}  // namespace keyhole
