// src/judge/call_tensors.h
// The tensors of one attention call, in whatever holds a tensor, and what a kernel receives of
// them.
#pragma once

#include <string>

#include "judge/poisoned_tensor.h"
#include "kernels/contract.h"

namespace keyhole::judge {

template <class Held>
struct InputTensors {
  Held q, k, v, dout, sink;
};
template <class Held>
struct OutputTensors {
  Held out, lse, dq, dk, dv, dsink;
};

// With the name of the first tensor that has any: "q: an input was written to". Empty: nothing.
std::string damage_of(const InputTensors<PoisonedTensor>& in);
std::string damage_of(const OutputTensors<PoisonedTensor>& o);
void seal(InputTensors<PoisonedTensor>& in);

struct CallTensors {
  TensorView q = {}, k = {}, v = {}, dout = {}, sink = {};
  TensorView out = {}, lse = {}, dq = {}, dk = {}, dv = {}, dsink = {};
};
template <class Held>
CallTensors views_of(const InputTensors<Held>& in, const OutputTensors<Held>& o) {
  return {in.q.view(),  in.k.view(), in.v.view(), in.dout.view(), in.sink.view(), o.out.view(),
          o.lse.view(), o.dq.view(), o.dk.view(), o.dv.view(),    o.dsink.view()};
}

ForwardArgs forward_args(const CallTensors& tensors, const WeightRule& rule);
BackwardArgs backward_args(const CallTensors& tensors, const WeightRule& rule);

}  // namespace keyhole::judge
