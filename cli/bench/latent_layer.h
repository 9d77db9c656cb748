// cli/bench/latent_layer.h
// What a selection is for: attention over the chosen keys, in latent form (DeepSeek: all query
// heads share one head of 576 columns, the first 512 of which are the values), beside dense causal
// attention of the same layer in its other form (192 columns a head, 128 of values).
#pragma once

#include <string>

#include "cli/bench/inputs.h"
#include "cli/bench/tables.h"

namespace keyhole::bench {

class LatentLayer {
 public:
  // chosen: where the lists are, for kernels and on the host.
  LatentLayer(const Session& session, const SelectRange& range, const IndexView& chosen,
              const IndexView& chosen_on_host);

  // One of the attentions, or the gradients. After a run, check() compares some rows with the
  // definition: empty, or what is wrong.
  struct Form {
    std::string kernel;
    double work = 0;  // multiplications and additions
    std::function<void()> run;
    std::function<std::string()> check;
  };
  Form over_chosen();
  Form gradients_over_chosen();  // after a run of over_chosen()
  Form dense();

 private:
  // The values are the first columns of k, or a tensor of their own.
  struct Tensors {
    Tensor q, k, v, out, lse;
  };
  struct GradientTensors {
    Tensor dout, dq, dk, dv;
  };
  Pattern chosen_pattern() const;
  TensorView latent_values() const;
  Form form_of(const Tensors& tensors, const TensorView& v, const TensorView& v_on_host,
               const Lists& lists, const Pattern& attends, double pairs) const;
  double num_chosen() const;

  AttentionOptions options_;
  SelectRange range_;
  IndexView chosen_, on_host_;
  Tensors latent_, per_head_;
  GradientTensors gradients_;  // of latent_
  Plan causal_;
};

}  // namespace keyhole::bench
