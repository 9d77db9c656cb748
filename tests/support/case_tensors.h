// tests/support/case_tensors.h
// The tensors of a case, in whatever holds a tensor: PoisonedTensor on the host, PoisonedOnGpu.
#pragma once

#include "support/case.h"

namespace keyhole::test {

template <class Held>
struct InputTensors {
  Held q, k, v, dout, sink;
};
template <class Held>
struct OutputTensors {
  Held out, lse, dq, dk, dv, dsink;
};

template <class Held>
void allocate(const Case& c, InputTensors<Held>& in) {
  in.q = Held(c.dtype, {c.batch, c.heads, c.q_len, c.head_dim}, c.layout(Tensor::q), false);
  in.k = Held(c.dtype, {c.batch, c.kv_heads, c.k_len, c.head_dim}, c.layout(Tensor::k), false);
  in.v = Held(c.dtype, {c.batch, c.kv_heads, c.k_len, c.v_head_dim}, c.layout(Tensor::v), false);
  in.dout = Held(c.dtype, {c.batch, c.heads, c.q_len, c.v_head_dim}, c.layout(Tensor::dout), false);
  if (c.has_sink) in.sink = Held(DType::f32, {c.heads}, Layout::contiguous, false);
}

template <class Held>
void allocate(const Case& c, OutputTensors<Held>& o) {
  const DType lse_dtype = c.dtype == DType::f64 ? DType::f64 : DType::f32;
  o.out = Held(c.dtype, {c.batch, c.heads, c.q_len, c.v_head_dim}, c.layout(Tensor::out), true);
  o.lse = Held(lse_dtype, {c.batch, c.heads, c.q_len}, c.layout(Tensor::lse), true);
  o.dq = Held(c.dtype, {c.batch, c.heads, c.q_len, c.head_dim}, c.layout(Tensor::dq), true);
  o.dk = Held(c.dtype, {c.batch, c.kv_heads, c.k_len, c.head_dim}, c.layout(Tensor::dk), true);
  o.dv = Held(c.dtype, {c.batch, c.kv_heads, c.k_len, c.v_head_dim}, c.layout(Tensor::dv), true);
  if (c.has_sink) o.dsink = Held(DType::f32, {c.heads}, Layout::contiguous, true);
}

inline Case with_contiguous_layouts(Case c) {
  c.layouts = {};
  return c;
}

}  // namespace keyhole::test
