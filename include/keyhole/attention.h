// include/keyhole/attention.h
// Attention over lists: forward, backward, and the merge of partial results.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "keyhole/lists.h"
#include "keyhole/normalizer.h"
#include "keyhole/tensor.h"
#include "keyhole/workspace.h"

namespace keyhole {

struct AttentionOptions {
  Normalizer normalizer = {};        // softmax; entmax(1.5), softmax(32), ...: keyhole/normalizer.h
  std::optional<double> scale = {};  // multiplies q . k; head_dim ** -0.5 when not given
  // Optional, for entmax and top_k: int32 [batch, q_heads, q_len, kSupportKeys]. Forward writes the
  // keys that have weight, backward reads them and does not look for them again.
  IndexView support = {};
  // Optional, for the backward pass of entmax and top_k: the gradient of lse, like lse.
  TensorView dlse = {};
  double softcap = 0;          // c > 0: a score s becomes c * tanh(s / c), before masking
  TensorView sink = {};        // optional, [q_heads] f32: one more logit per head, without a value
  bool deterministic = false;  // the backward pass too; the cpu backend always is
  std::string backend = "auto";  // "auto" or a backend's name: "cpu", "simple", "sm80", "sm90"
  int threads = 0;               // cpu: at most this many; 0: all the machine has
  void* stream = nullptr;        // GPU: the cudaStream_t to queue on; null: the default stream
  // GPU: scratch memory, or a function that provides it: keyhole/workspace.h. If neither is given,
  // the call takes memory of a pool that keeps it.
  Workspace workspace = {};
  AllocateWorkspace allocate = {};
  // For an index tensor on a GPU: check every index before anything is computed. The call then
  // waits for the stream, so it cannot be captured into a CUDA graph.
  bool check_indices = false;
};

// q    [batch, q_heads, q_len, head_dim]
// k    [batch, kv_heads, k_len, head_dim]      q_heads is a multiple of kv_heads
// v    [batch, kv_heads, k_len, v_head_dim]
// out  [batch, q_heads, q_len, v_head_dim]     written; dtype of q
// lse  [batch, q_heads, q_len]                 optional, written; f32 (f64 for f64 inputs)
//
// A query that attends to nothing gets out = 0 and lse = -inf. lse is the natural logarithm of the
// sum of exp(score) over the attended keys (with top_k, over the selected ones); a sink adds its
// own term to that sum. For entmax it is lambda: a key has the weight x ** (1 / (alpha - 1)) with
// x = max(1 + (alpha - 1) * (score - lambda), 0). lambda tends to the lse as alpha tends to 1.
void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                       const Lists& lists, const TensorView& out, const TensorView& lse = {},
                       const AttentionOptions& options = {});

struct Gradients {
  TensorView dq, dk, dv;  // shapes and dtypes of q, k, v
  TensorView dsink;       // optional, [q_heads] f32; needs options.sink
};

// out and lse are used as given, not recomputed. Gradients over disjoint parts of the keys
// therefore add up: pass the merged out and lse to each part.
void attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& out, const TensorView& lse,
                        const Lists& lists, const Gradients& gradients,
                        const AttentionOptions& options = {});

// The workspace these calls need, in bytes; 0 on the cpu. Pass the tensors of the real call: their
// addresses and strides decide which kernel runs. Arguments are checked as in the calls.
//
// The size depends on the plan, and the first query copies the plan's lists to the GPU. It never
// depends on the contents of index tensors or tile lists.
int64_t forward_workspace_bytes(const TensorView& q, const TensorView& k, const TensorView& v,
                                const Lists& lists, const TensorView& out,
                                const TensorView& lse = {}, const AttentionOptions& options = {});
int64_t backward_workspace_bytes(const TensorView& dout, const TensorView& q, const TensorView& k,
                                 const TensorView& v, const TensorView& out, const TensorView& lse,
                                 const Lists& lists, const Gradients& gradients,
                                 const AttentionOptions& options = {});

// Merges the result (from_out, from_lse) over other keys into (into_out, into_lse), in place. Only
// for softmax, whose row statistics add up; `normalizer`, that of the two results, is refused if it
// is another. Rows that attended to nothing (lse -inf) change nothing. On a GPU the merge is queued
// on the stream.
void merge(const TensorView& into_out, const TensorView& into_lse, const TensorView& from_out,
           const TensorView& from_lse, void* stream = nullptr, const Normalizer& normalizer = {});

// Which kernel would run, with its tile and schedule. Throws Error(unsupported) with every kernel's
// objection when none can.
//   "sm90.backward.bf16.d128, tiles 64x128, dq atomic, dk and dv in order, workspace 1024 bytes"
// k is assumed to have the heads and the length of v. Tensors that are not given are assumed to
// have the alignment and strides a kernel wants.
std::string kernel_for_forward(const TensorView& q, const TensorView& v, const Lists& lists,
                               const AttentionOptions& options = {});
std::string kernel_for_backward(const TensorView& q, const TensorView& v, const Lists& lists,
                                const AttentionOptions& options = {});

}  // namespace keyhole
