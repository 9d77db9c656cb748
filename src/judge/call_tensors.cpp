// src/judge/call_tensors.cpp
#include "judge/call_tensors.h"

#include "base/check.h"

namespace keyhole::judge {
namespace {

using Named = std::pair<const char*, const PoisonedTensor*>;

std::string first_damage(std::initializer_list<Named> tensors) {
  for (const auto& [name, tensor] : tensors) {
    const std::string damage = tensor->damage();
    if (!damage.empty()) return say(name, ": ", damage);
  }
  return "";
}

}  // namespace

std::string damage_of(const InputTensors<PoisonedTensor>& in) {
  return first_damage(
      {{"q", &in.q}, {"k", &in.k}, {"v", &in.v}, {"dout", &in.dout}, {"sink", &in.sink}});
}

std::string damage_of(const OutputTensors<PoisonedTensor>& o) {
  return first_damage({{"out", &o.out},
                       {"lse", &o.lse},
                       {"dq", &o.dq},
                       {"dk", &o.dk},
                       {"dv", &o.dv},
                       {"dsink", &o.dsink}});
}

void seal(InputTensors<PoisonedTensor>& in) {
  for (PoisonedTensor* tensor : {&in.q, &in.k, &in.v, &in.dout, &in.sink}) tensor->seal();
}

ForwardArgs forward_args(const CallTensors& t, const WeightRule& rule) {
  ForwardArgs args;
  args.q = t.q, args.k = t.k, args.v = t.v, args.out = t.out, args.lse = t.lse, args.sink = t.sink;
  args.rule = rule;
  return args;
}

BackwardArgs backward_args(const CallTensors& t, const WeightRule& rule) {
  BackwardArgs args;
  args.dout = t.dout, args.q = t.q, args.k = t.k, args.v = t.v, args.out = t.out, args.lse = t.lse;
  args.dq = t.dq, args.dk = t.dk, args.dv = t.dv, args.sink = t.sink, args.dsink = t.dsink;
  args.rule = rule;
  return args;
}

}  // namespace keyhole::judge
