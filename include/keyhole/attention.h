// include/keyhole/attention.h
// Attention that follows lists: forward, backward, and the merge of partial results.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "keyhole/lists.h"
#include "keyhole/tensor.h"

namespace keyhole {

// Scratch memory on the GPU of the tensors, 256-byte aligned.
struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

struct AttentionOptions {
  std::optional<double> scale = {};  // multiplies q . k; head_dim ** -0.5 when not given
  double softcap = 0;                // c > 0: a score s becomes c * tanh(s / c), before masking
  TensorView sink = {};        // optional, [q_heads] f32: one more logit per head, without a value
  bool deterministic = false;  // the backward pass too; the cpu backend always is
  std::string backend = "auto";  // "auto" or a backend's name: "cpu", "simple", "sm80", "sm90"
  int threads = 0;               // cpu: at most this many; 0: all the machine has
  void* stream = nullptr;        // GPU: the cudaStream_t to queue on; null: the default stream
  Workspace workspace = {};      // GPU: optional; taken from the driver's pool when not given
  // An index tensor on a GPU: wait for the stream and look at every index before anything is
  // computed. Not while a CUDA graph is captured.
  bool check_indices = false;
};

// q    [batch, q_heads, q_len, head_dim]
// k    [batch, kv_heads, k_len, head_dim]      q_heads is a multiple of kv_heads
// v    [batch, kv_heads, k_len, v_head_dim]
// out  [batch, q_heads, q_len, v_head_dim]     written; dtype of q
// lse  [batch, q_heads, q_len]                 optional, written; f32 (f64 for f64 inputs)
//
// A query that attends to nothing gets out = 0 and lse = -inf. lse is the natural logarithm of the
// sum of exp(score) over the attended keys, and the sink where there is one.
void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                       const Lists& lists, const TensorView& out, const TensorView& lse = {},
                       const AttentionOptions& options = {});

struct Gradients {
  TensorView dq, dk, dv;  // shapes and dtypes of q, k, v
  TensorView dsink;       // optional, [q_heads] f32; needs options.sink
};

// out and lse are taken as given (not recomputed), so that gradients over disjoint parts of the
// keys add up: pass the merged out and lse to each part.
void attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& out, const TensorView& lse,
                        const Lists& lists, const Gradients& gradients,
                        const AttentionOptions& options = {});

// How large a workspace these very calls need (0 on the cpu): where a tensor lies decides which
// kernel runs. Arguments are checked as in the calls. It depends on a plan, whose lists are copied
// to the GPU by the first question, and never on what index tensors and tile lists hold.
int64_t forward_workspace_bytes(const TensorView& q, const TensorView& k, const TensorView& v,
                                const Lists& lists, const TensorView& out,
                                const TensorView& lse = {}, const AttentionOptions& options = {});
int64_t backward_workspace_bytes(const TensorView& dout, const TensorView& q, const TensorView& k,
                                 const TensorView& v, const TensorView& out, const TensorView& lse,
                                 const Lists& lists, const Gradients& gradients,
                                 const AttentionOptions& options = {});

// Folds the result (from_out, from_lse) over other keys into (into_out, into_lse), in place. For
// results of softmax, whose statistics add up.
// Rows that attended to nothing (lse -inf) are neutral. On a GPU it is queued on the stream.
void merge(const TensorView& into_out, const TensorView& into_lse, const TensorView& from_out,
           const TensorView& from_lse, void* stream = nullptr);

// What would run: kernel, tile and schedule, or an Error(unsupported) with every kernel's
// objection.
//   "sm90.backward.bf16.d128, tiles 64x128, dq atomic, dk and dv in order, workspace 1024 bytes"
// k and v have equal heads and lengths; what is not given lies as a kernel wants it.
std::string kernel_for_forward(const TensorView& q, const TensorView& v, const Lists& lists,
                               const AttentionOptions& options = {});
std::string kernel_for_backward(const TensorView& q, const TensorView& v, const Lists& lists,
                                const AttentionOptions& options = {});

}  // namespace keyhole
