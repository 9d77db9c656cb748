// tests/support/inputs.h
// The tensors of a case: inputs filled according to its regime, outputs full of canaries.
#pragma once

#include "keyhole/attention.h"
#include "support/allowed_pairs.h"
#include "support/case_tensors.h"

namespace keyhole::test {

struct Inputs : InputTensors<PoisonedTensor> {
  AttentionOptions options;  // scale, softcap, sink, threads of the case
};
using Outputs = OutputTensors<PoisonedTensor>;

Inputs make_inputs(const Case& c, const AllowedPairs& allowed);
Outputs make_outputs(const Case& c);
// The same numbers in plain contiguous tensors.
Inputs contiguous(const Case& c, const Inputs& inputs);
Outputs contiguous_outputs(const Case& c);

}  // namespace keyhole::test
