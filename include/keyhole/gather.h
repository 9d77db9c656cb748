// include/keyhole/gather.h
// Attention over lists of keys that a program has computed: selected, retrieved, hashed. There is
// no pattern and no plan; the lists are an index tensor, which stays where it is.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "keyhole/attention.h"
#include "keyhole/tensor.h"

namespace keyhole {

// Which keys each query attends to.
//   [batch, heads, ceil(q_len / rows_per_list), entries]
//
// heads are those of k (the query heads of one kv head share a list), those of q, or 1. Entries are
// keys in any order. A key that is named twice counts twice: its value has twice the weight. -1 is
// padding and may stand anywhere; a list of nothing else is an empty row.
//
// In host memory any other entry is an error. On a GPU it is treated as padding, because an error
// would have to wait for the GPU; GatherOptions::check_indices waits.
struct IndexView {
  const void* data = nullptr;
  bool is_wide = false;  // int64_t; else int32_t
  int64_t shape[4] = {};
  int64_t strides[4] = {};  // in elements, 0 or more
  Device device = {};
  int64_t rows_per_list = 1;  // neighbouring queries that share a list

  IndexView() = default;
  // Elements follow one another in memory, last dimension fastest.
  IndexView(const int32_t* data, std::initializer_list<int64_t> shape);
  IndexView(const int64_t* data, std::initializer_list<int64_t> shape);
};

std::string to_string(const IndexView& indices);  // "int32 [1, 2, 2048, 64]"

struct GatherOptions : AttentionOptions {
  // GPU: wait for the stream and look at every index before anything is computed. Not while a CUDA
  // graph is captured.
  bool check_indices = false;
};

// Tensors, empty rows, lse and gradients as in attention.h.
void gather_attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                              const IndexView& indices, const TensorView& out,
                              const TensorView& lse = {}, const GatherOptions& options = {});

// dk and dv are added to from many lists: on a GPU in no fixed order, unless options.deterministic
// asks for it (the indices are then sorted by key, in the workspace).
void gather_attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                               const TensorView& v, const TensorView& out, const TensorView& lse,
                               const IndexView& indices, const Gradients& gradients,
                               const GatherOptions& options = {});

// How large a workspace these calls need (0 on the cpu). Depends on shapes, never on the indices.
int64_t gather_forward_workspace_bytes(const TensorView& q, const TensorView& k,
                                       const TensorView& v, const IndexView& indices,
                                       const GatherOptions& options = {});
int64_t gather_backward_workspace_bytes(const TensorView& q, const TensorView& k,
                                        const TensorView& v, const IndexView& indices,
                                        const GatherOptions& options = {});

}  // namespace keyhole
