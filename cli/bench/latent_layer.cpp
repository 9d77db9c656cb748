// cli/bench/latent_layer.cpp
#include "cli/bench/latent_layer.h"

#include <algorithm>

#include "runtime/registry.h"

namespace keyhole::bench {
namespace {

constexpr int64_t kLatentColumns = 576, kLatentValues = 512;
constexpr int64_t kColumns = 192, kValues = 128;

// The name of a kernel alone, without its tiles.
std::string name_of(const std::string& kernel) { return kernel.substr(0, kernel.find(',')); }

const KernelEntry& kernel_named(const std::string& name) {
  const auto found = std::ranges::find(kernel_table(), name, &KernelEntry::name);
  if (found != kernel_table().end()) return *found;
  throw Error(ErrorKind::internal, "bench: no kernel is called " + name);
}

// Of the first head and of the last.
std::vector<int64_t> checked_heads(const SelectSizes& sizes) { return {0, sizes.q_heads - 1}; }
std::vector<int64_t> checked_rows(const SelectSizes& sizes) {
  return judge::rows_to_check(sizes.queries, 0, /*count=*/2, /*seed=*/1);
}

}  // namespace

LatentLayer::LatentLayer(const Session& session, const SelectSizes& sizes, const IndexView& chosen,
                         const IndexView& chosen_on_host)
    : sizes_(sizes),
      chosen_(chosen),
      on_host_(chosen_on_host),
      causal_(plan(causal(), sizes.queries, sizes.entries)) {
  options_.threads = session.threads();
  const auto tensor = [&](int64_t heads, int64_t length, int64_t columns) {
    const DType dtype = session.is_on_gpu() ? DType::bf16 : DType::f32;
    return Tensor(dtype, {1, heads, length, columns}, session.device());
  };
  const auto attention = [&](int64_t columns, int64_t values) {
    Attention made;
    made.q = tensor(sizes.q_heads, sizes.queries, columns);
    made.k = tensor(1, sizes.entries, columns);
    made.out = tensor(sizes.q_heads, sizes.queries, values);
    made.lse = Tensor(DType::f32, {1, sizes.q_heads, sizes.queries}, session.device());
    made.q.fill_normal(4), made.k.fill_normal(5);
    made.out.fill_nan(), made.lse.fill_nan();
    return made;
  };
  latent_ = attention(kLatentColumns, kLatentValues);
  latent_.values = part_of(latent_.k.view(), 3, 0, kLatentValues);
  latent_.values_on_host = part_of(latent_.k.host(), 3, 0, kLatentValues);
  latent_.attends = chosen_pattern();
  const auto* const lists = static_cast<const int32_t*>(on_host_.data);
  const int64_t all = sizes.queries * sizes.k;
  latent_.pairs = double(all - std::count(lists, lists + all, -1));
  latent_.dout = tensor(sizes.q_heads, sizes.queries, kLatentValues);
  latent_.dq = tensor(sizes.q_heads, sizes.queries, kLatentColumns);
  latent_.dk = tensor(1, sizes.entries, kLatentColumns);
  latent_.dv = tensor(1, sizes.entries, kLatentValues);
  latent_.dout.fill_normal(7);

  per_head_ = attention(kColumns, kValues);
  per_head_.v = tensor(1, sizes.entries, kValues);
  per_head_.v.fill_normal(6);
  per_head_.values = per_head_.v.view(), per_head_.values_on_host = per_head_.v.host();
  per_head_.attends = causal(), per_head_.pairs = double(causal_.explain().pairs);
}

Pattern LatentLayer::chosen_pattern() const {
  const auto* const lists = static_cast<const int32_t*>(on_host_.data);
  const int64_t count = sizes_.k, offset = sizes_.entries - sizes_.queries;
  return lambda([lists, count, offset](int64_t query, int64_t key) {
    const int32_t* const list = lists + (query - offset) * count;  // ascending, then padding
    const auto less = [](int32_t a, int32_t b) { return uint32_t(a) < uint32_t(b); };  // -1 is last
    return std::binary_search(list, list + count, int32_t(key), less);
  });
}

judge::Answer LatentLayer::answer(const Attention& attention, int64_t head) const {
  judge::CallTensors tensors = attention.host();
  tensors.v = attention.values_on_host;
  for (TensorView* view : {&tensors.q, &tensors.dout, &tensors.out, &tensors.lse, &tensors.dq}) {
    if (view->is_given()) *view = part_of(*view, 1, head, 1);
  }
  return {tensors, attention.attends, options_};
}

LatentLayer::Form LatentLayer::over_chosen() { return form_of(latent_, chosen_); }

// Keys and values that all heads share are a favour to this form: a layer reads them for each head.
LatentLayer::Form LatentLayer::dense() { return form_of(per_head_, causal_); }

LatentLayer::Form LatentLayer::form_of(const Attention& attention, const Lists& lists) const {
  const Attention* const these = &attention;  // lives as long as this layer
  const std::string kernel =
      name_of(kernel_for_forward(attention.q, attention.values, lists, options_));
  const int64_t columns = attention.q.view().shape[3] + attention.values.shape[3];
  const auto run = [=, this] {
    attention_forward(these->q, these->k, these->values, lists, these->out, these->lse, options_);
  };
  const auto check = [=, this] {
    these->out.bring_back(), these->lse.bring_back();
    judge::Finding worst = judge::judge_written("out", these->out.host(), options_.threads);
    for (const int64_t head : checked_heads(sizes_)) {
      worst.take(
          judge::judge_forward(kernel_named(kernel), answer(*these, head), checked_rows(sizes_)));
    }
    return worst.complaint;
  };
  return {kernel, 2 * attention.pairs * double(sizes_.q_heads * columns), run, check};
}

// Five products of each pair: q . k, dout . v, and those of dq, dk and dv.
LatentLayer::Form LatentLayer::gradients_over_chosen() {
  const Lists lists = chosen_;
  const std::string kernel =
      name_of(kernel_for_backward(latent_.q, latent_.values, lists, options_));
  const auto run = [=, this] {
    attention_backward(latent_.dout, latent_.q, latent_.k, latent_.values, latent_.out, latent_.lse,
                       lists, {latent_.dq, latent_.dk, latent_.dv, {}}, options_);
  };
  const auto check = [=, this] {
    judge::Finding worst;
    for (const int64_t head : checked_heads(sizes_)) {
      latent_.dout.keep_rows(checked_rows(sizes_), head);  // then it alone adds to dk and dv
      for (Tensor* gradient : {&latent_.dq, &latent_.dk, &latent_.dv}) gradient->fill_nan();
      run();
      for (Tensor* gradient : {&latent_.dq, &latent_.dk, &latent_.dv}) gradient->bring_back();
      worst.take(judge::judge_written("dq", latent_.dq.host(), options_.threads));
      worst.take(
          judge::judge_backward(kernel_named(kernel), answer(latent_, head), checked_rows(sizes_)));
      latent_.dout.fill_normal(7);
    }
    return worst.complaint;
  };
  const int64_t columns = 3 * kLatentColumns + 2 * kLatentValues;
  return {kernel, 2 * latent_.pairs * double(sizes_.q_heads * columns), run, check};
}

}  // namespace keyhole::bench
