// cli/bench/latent_layer.h
// What a selection is for: attention over the chosen keys, in latent form (DeepSeek: all query
// heads share one head of 576 columns, the first 512 of which are the values), beside dense causal
// attention of the same layer in its other form (192 columns a head, 128 of values).
#pragma once

#include <string>

#include "cli/bench/inputs.h"
#include "cli/bench/tables.h"
#include "judge/judge.h"

namespace keyhole::bench {

struct SelectSizes {
  int64_t queries = 0, entries = 0, heads = 0, head_dim = 0, k = 0;
  int64_t q_heads = 0;  // of the attention; 0: none
  DType dtype = DType::f32;
};

class LatentLayer {
 public:
  // chosen: where the lists are, for kernels and on the host.
  LatentLayer(const Session& session, const SelectSizes& sizes, const IndexView& chosen,
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
  struct Attention : Tensors {
    TensorView values, values_on_host;  // the first columns of k, or a tensor of their own
    Pattern attends = keyhole::dense();
    double pairs = 0;  // of a head
  };
  Pattern chosen_pattern() const;
  judge::Answer answer(const Attention& attention, int64_t head) const;
  Form form_of(const Attention& attention, const Lists& lists) const;

  AttentionOptions options_;
  SelectSizes sizes_;
  IndexView chosen_, on_host_;
  Attention latent_, per_head_;  // latent_ has gradients, too
  Plan causal_;
};

}  // namespace keyhole::bench
