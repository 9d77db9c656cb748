// src/api/attention.cpp
// The public functions: check the arguments once, choose what runs, run it. All kinds of lists take
// the same path.
#include "keyhole/attention.h"

#include <cmath>

#include "api/check_arguments.h"
#include "api/check_lists.h"
#include "base/check.h"
#include "base/int_math.h"
#include "base/weight_rule.h"
#include "runtime/dispatch.h"
#include "runtime/gpu.h"
#include "runtime/list_facts.h"
#include "runtime/registry.h"

namespace keyhole {
namespace {

// The most keys that one row of the lists may have; a key that is listed twice counts twice.
int64_t most_keys(const Lists& lists, const TensorView& v) {
  if (const auto* keys = std::get_if<KeyListView>(&lists.get())) {
    return checked_mul(keys->indices.shape[3], keys->keys_per_entry, "attention: keys of a list");
  }
  if (const auto* tiles = std::get_if<TileListView>(&lists.get())) {
    return checked_mul(tiles->tiles.shape[3], tiles->tile.k, "attention: tiles");
  }
  return v.shape[2];
}

// The normalizer of a call. A top_k that takes all keys is none, so that softmax is the plain one,
// unless the call asks for what only kernels of top_k give.
Normalizer normalizer_of(const TensorView& v, const Lists& lists, const AttentionOptions& options) {
  Normalizer normalizer = options.normalizer;
  const bool needs_rows = options.support.is_given() || options.dlse.is_given();
  if (!needs_rows && normalizer.top_k >= most_keys(lists, v)) normalizer.top_k = 0;
  return normalizer;
}

WeightRule rule_of(const TensorView& q, const TensorView& v, const Lists& lists,
                   const AttentionOptions& options) {
  return {.normalizer = normalizer_of(v, lists, options),
          .scale = options.scale.value_or(1 / std::sqrt(double(q.shape[3]))),
          .softcap = options.softcap};
}

Request request_for(Operation operation, const TensorView& q, const TensorView& k,
                    const TensorView& v, const Lists& lists, const ListFacts& facts,
                    const AttentionOptions& options,
                    std::initializer_list<const TensorView*> tensors) {
  const WeightRule rule = rule_of(q, v, lists, options);
  Request request{.backend = options.backend,
                  .operation = operation,
                  .dtype = q.dtype,
                  .head_dim = q.shape[3],
                  .v_head_dim = v.shape[3],
                  .device = q.device,
                  .normalizer = rule.normalizer,
                  .has_softcap = rule.bends_in_fp32(),
                  .softcap = options.softcap,
                  .has_sink = options.sink.is_given(),
                  .deterministic = operation == Operation::backward && options.deterministic,
                  .shares_kv_heads = q.shape[1] != v.shape[1],
                  .lists = &facts,
                  .is_aligned = rows_are_aligned(tensors)};
  if (request.deterministic) request.key_lists = key_list_sizes(q, k, lists);
  if (q.device.kind == Device::Kind::cuda) {
    request.compute_capability = gpu(q.device).compute_capability;
    request.shared_bytes = gpu(q.device).shared_bytes;
    request.why_no_tma = why_no_tma(tensors);
    request.why_not_latent = why_not_latent(k, v, lists);
  }
  return request;
}

template <class Args>
Args args_of(const TensorView& q, const TensorView& k, const TensorView& v, const Lists& lists,
             const AttentionOptions& options) {
  Args args;
  args.q = q;
  args.k = k;
  args.v = v;
  args.rule = rule_of(q, v, lists, options);
  const IndexView& support = options.support;
  args.support = {static_cast<int32_t*>(const_cast<void*>(support.data)), support.strides[0],
                  support.strides[1], support.strides[2]};
  args.sink = options.sink;
  args.threads = options.threads;
  args.launch.stream = options.stream;
  args.launch.workspace = options.workspace.data;
  args.launch.workspace_bytes = options.workspace.bytes;
  return args;
}

struct Forward {
  Choice choice;
  ForwardArgs args;
};
Forward prepare_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                        const Lists& lists, const TensorView& out, const TensorView& lse,
                        const AttentionOptions& options) {
  check_forward(q, k, v, out, lse, options);
  check_lists("attention", lists, q, k);
  check_support(options, q);
  const TensorView support = memory_of(options.support);
  for (const auto& [memory, name] : memory_of(lists)) {
    check_no_overlap("attention", out, "out", memory, name);
    check_no_overlap("attention", lse, "lse", memory, name);
    check_no_overlap("attention", support, "support", memory, name);
  }
  for (const auto& [tensor, name] :
       {std::pair{&q, "q"}, {&k, "k"}, {&v, "v"}, {&out, "out"}, {&lse, "lse"}}) {
    check_no_overlap("attention", support, "support", *tensor, name);
  }
  const FactsOf facts(lists);
  Forward call{choose_call(kernel_table(), request_for(Operation::forward, q, k, v, lists, facts,
                                                       options, {&q, &k, &v, &out})),
               args_of<ForwardArgs>(q, k, v, lists, options)};
  call.args.out = out;
  call.args.lse = lse;
  return call;
}

struct Backward {
  Choice choice;
  BackwardArgs args;
};
Backward prepare_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                          const TensorView& v, const TensorView& out, const TensorView& lse,
                          const Lists& lists, const Gradients& gradients,
                          const AttentionOptions& options) {
  check_backward(dout, q, k, v, out, lse, gradients, options);
  check_lists("attention", lists, q, k);
  check_support(options, q);
  auto read = memory_of(lists);
  read.emplace_back(memory_of(options.support), "support");
  for (const auto& [memory, memory_name] : read) {
    for (const auto& [tensor, name] : {std::pair{&gradients.dq, "dq"},
                                       {&gradients.dk, "dk"},
                                       {&gradients.dv, "dv"},
                                       {&gradients.dsink, "dsink"}}) {
      check_no_overlap("attention", *tensor, name, memory, memory_name);
    }
  }
  const FactsOf facts(lists);
  const Request request =
      request_for(Operation::backward, q, k, v, lists, facts, options,
                  {&dout, &q, &k, &v, &out, &gradients.dq, &gradients.dk, &gradients.dv});
  Backward call{choose_call(kernel_table(), request),
                args_of<BackwardArgs>(q, k, v, lists, options)};
  call.args.dout = dout;
  call.args.out = out;
  call.args.lse = lse;
  call.args.dq = gradients.dq;
  call.args.dk = gradients.dk;
  call.args.dv = gradients.dv;
  call.args.dsink = gradients.dsink;
  call.args.dlse = options.dlse;
  call.args.schedule = call.choice.schedule;
  return call;
}

void check_entries(const Lists& lists, const TensorView& q, const TensorView& k,
                   const AttentionOptions& options) {
  if (!options.check_indices || q.device.kind == Device::Kind::cpu) return;
  if (const auto* keys = std::get_if<KeyListView>(&lists.get())) {
    const GatherView table = key_table(*keys, q, k);
    if (const auto bad = find_bad_entry_on_gpu(table, q.device, options.stream))
      refuse("attention", table, *bad);
  }
}

}  // namespace

void attention_forward(const TensorView& q, const TensorView& k, const TensorView& v,
                       const Lists& lists, const TensorView& out, const TensorView& lse,
                       const AttentionOptions& options) {
  const Forward call = prepare_forward(q, k, v, lists, out, lse, options);
  check_entries(lists, q, k, options);
  run_forward(*call.choice.kernel, lists, call.choice.tile, call.args, options.allocate);
}

void attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                        const TensorView& v, const TensorView& out, const TensorView& lse,
                        const Lists& lists, const Gradients& gradients,
                        const AttentionOptions& options) {
  const Backward call = prepare_backward(dout, q, k, v, out, lse, lists, gradients, options);
  check_entries(lists, q, k, options);
  run_backward(*call.choice.kernel, lists, call.choice.tile, call.args, options.allocate);
}

int64_t forward_workspace_bytes(const TensorView& q, const TensorView& k, const TensorView& v,
                                const Lists& lists, const TensorView& out, const TensorView& lse,
                                const AttentionOptions& options) {
  const Forward call = prepare_forward(q, k, v, lists, out, lse, options);
  return forward_workspace(*call.choice.kernel, lists, call.choice.tile, call.args);
}

int64_t backward_workspace_bytes(const TensorView& dout, const TensorView& q, const TensorView& k,
                                 const TensorView& v, const TensorView& out, const TensorView& lse,
                                 const Lists& lists, const Gradients& gradients,
                                 const AttentionOptions& options) {
  const Backward call = prepare_backward(dout, q, k, v, out, lse, lists, gradients, options);
  return backward_workspace(*call.choice.kernel, lists, call.choice.tile, call.args);
}

namespace {

// For kernel_for_*: checks what decides which kernel runs. Tensors need no memory.
void check_question(const TensorView& q, const TensorView& v, const Lists& lists,
                    const AttentionOptions& options) {
  check_normalizer(options.normalizer);
  KEYHOLE_CHECK(q.rank == 4 && v.rank == 4, "attention: q has ", q.rank, " and v ", v.rank,
                " dimensions; expected 4: [batch, heads, length, head_dim]");
  KEYHOLE_CHECK(v.shape[1] == 0 ? q.shape[1] == 0 : q.shape[1] % v.shape[1] == 0,
                "attention: q has ", q.shape[1], " heads and v has ", v.shape[1],
                "; the heads of q must be a multiple of those of v");
  check_lists("attention", lists, q, v);
}

// A tensor with the layout kernels want. For kernel_for_*: its memory is never touched.
TensorView like(const TensorView& tensor, int64_t heads, int64_t length, int64_t columns) {
  TensorView other(tensor.data, tensor.dtype, {tensor.shape[0], heads, length, columns});
  other.device = tensor.device;
  return other;
}

// The k that a question is about: a v whose rows are cut out of longer ones is part of k.
TensorView k_of(const TensorView& v, const TensorView& q) {
  const bool is_part = v.shape[3] < q.shape[3] && v.strides[2] >= q.shape[3];
  TensorView k = v;
  k.shape[3] = is_part ? q.shape[3] : 0;
  return k;
}

}  // namespace

std::string kernel_for_forward(const TensorView& q, const TensorView& v, const Lists& lists,
                               const AttentionOptions& options) {
  check_question(q, v, lists, options);
  const FactsOf facts(lists);
  Choice choice = choose_call(kernel_table(), request_for(Operation::forward, q, k_of(v, q), v,
                                                          lists, facts, options, {&q, &v}));
  auto args =
      args_of<ForwardArgs>(q, like(v, v.shape[1], v.shape[2], q.shape[3]), v, lists, options);
  args.out = like(q, q.shape[1], q.shape[2], v.shape[3]);
  choice.workspace_bytes = forward_workspace(*choice.kernel, lists, choice.tile, args);
  return to_string(choice);
}

std::string kernel_for_backward(const TensorView& q, const TensorView& v, const Lists& lists,
                                const AttentionOptions& options) {
  check_question(q, v, lists, options);
  const FactsOf facts(lists);
  Choice choice = choose_call(kernel_table(), request_for(Operation::backward, q, k_of(v, q), v,
                                                          lists, facts, options, {&q, &v}));
  auto args =
      args_of<BackwardArgs>(q, like(v, v.shape[1], v.shape[2], q.shape[3]), v, lists, options);
  args.schedule = choice.schedule;
  choice.workspace_bytes = backward_workspace(*choice.kernel, lists, choice.tile, args);
  return to_string(choice);
}

}  // namespace keyhole
