// src/kernels/sm80/backward_launch.h
// The backward pass for one padded head_dim each; T is __half or __nv_bfloat16. Each is compiled in
// a file of its own (backward_d*.cu). The shape of the plan's tiles and args.launch.shared_bytes
// decide between the configurations of backward_config.h.
#pragma once

#include "kernels/device/backward_call.h"

namespace keyhole::sm80 {

// Fast, one launch adds to sums of dq, and query heads that share a kv head add to sums of its dk
// and dv, as do key lists. In order, a launch over queries makes dq, and nothing is scattered.
inline device::BackwardNeeds needs_of(const BackwardArgs& args) {
  const bool is_fast = !args.deterministic;
  return {.queries_in_sums = is_fast,
          .queries_in_blocks = true,
          .keys_in_sums = is_fast && args.q.shape[1] != args.k.shape[1],
          .keys_in_chunks = true,
          .gather_in_sums = is_fast};
}

template <class T>
void backward_d64(const BackwardArgs& args);
template <class T>
void backward_d96(const BackwardArgs& args);
template <class T>
void backward_d128(const BackwardArgs& args);
template <class T>
void backward_d192(const BackwardArgs& args);
template <class T>
void backward_d256(const BackwardArgs& args);

}  // namespace keyhole::sm80
