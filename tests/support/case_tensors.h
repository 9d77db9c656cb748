// tests/support/case_tensors.h
// The tensors of a case, in whatever holds a tensor: PoisonedTensor on the host, PoisonedOnGpu.
#pragma once

#include "judge/call_tensors.h"
#include "support/case.h"

namespace keyhole::test {

using judge::InputTensors, judge::OutputTensors, judge::PoisonedTensor;

template <class Held>
void allocate(const Case& c, InputTensors<Held>& in) {
  const auto held = [&](Tensor tensor, int64_t heads, int64_t length, int64_t dim) {
    return Held(place(c.dtype, {c.batch, heads, length, dim}, c.layout(tensor)), false);
  };
  in.q = held(Tensor::q, c.heads, c.q_len, c.head_dim);
  in.k = held(Tensor::k, c.kv_heads, c.k_len, c.head_dim);
  in.v = held(Tensor::v, c.kv_heads, c.k_len, c.v_head_dim);
  in.dout = held(Tensor::dout, c.heads, c.q_len, c.v_head_dim);
  if (c.has_sink) in.sink = Held(place(DType::f32, {c.heads}, Layout::contiguous), false);
}

template <class Held>
void allocate(const Case& c, OutputTensors<Held>& o) {
  const auto held = [&](Tensor tensor, int64_t heads, int64_t length, int64_t dim) {
    return Held(place(c.dtype, {c.batch, heads, length, dim}, c.layout(tensor)), true);
  };
  const DType lse_dtype = c.dtype == DType::f64 ? DType::f64 : DType::f32;
  o.out = held(Tensor::out, c.heads, c.q_len, c.v_head_dim);
  o.lse = Held(place(lse_dtype, {c.batch, c.heads, c.q_len}, c.layout(Tensor::lse)), true);
  o.dq = held(Tensor::dq, c.heads, c.q_len, c.head_dim);
  o.dk = held(Tensor::dk, c.kv_heads, c.k_len, c.head_dim);
  o.dv = held(Tensor::dv, c.kv_heads, c.k_len, c.v_head_dim);
  if (c.has_sink) o.dsink = Held(place(DType::f32, {c.heads}, Layout::contiguous), true);
}

inline Case with_contiguous_layouts(Case c) {
  c.layouts = {};
  return c;
}

}  // namespace keyhole::test
