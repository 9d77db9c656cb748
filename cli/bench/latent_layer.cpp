// cli/bench/latent_layer.cpp
#include "cli/bench/latent_layer.h"

#include <algorithm>

#include "judge/judge.h"
#include "runtime/registry.h"

namespace keyhole::bench {
namespace {

constexpr int64_t kLatentColumns = 576, kLatentValues = 512;
constexpr int64_t kColumns = 192, kValues = 128;
constexpr int64_t kCheckedRows = 2;  // of the first head and of the last

const KernelEntry& kernel_named(const std::string& text) {
  const std::string name = text.substr(0, text.find(','));
  for (const KernelEntry& kernel : kernel_table()) {
    if (kernel.name == name) return kernel;
  }
  throw Error(ErrorKind::internal, "bench: no kernel is called " + name);
}

TensorView one_head(TensorView view, int64_t head) {
  view.data = static_cast<std::byte*>(view.data) + head * view.strides[1] * bytes_of(view.dtype);
  view.shape[1] = 1;
  return view;
}

// The first columns of a tensor.
TensorView first_columns(TensorView view, int64_t count) {
  view.shape[3] = count;
  return view;
}

// Zero but in some rows of one head.
void keep_rows(const Tensor& tensor, int64_t head, const std::vector<int64_t>& rows) {
  const TensorView& view = tensor.host();
  const int64_t row_bytes = view.shape[3] * bytes_of(view.dtype);
  auto* const data = static_cast<std::byte*>(view.data);
  for (int64_t i = 0; i < view.shape[1] * view.shape[2]; ++i) {
    const bool is_kept =
        i / view.shape[2] == head && std::ranges::find(rows, i % view.shape[2]) != rows.end();
    if (!is_kept) std::fill_n(data + i * row_bytes, row_bytes, std::byte{0});
  }
  tensor.send();
}

}  // namespace

LatentLayer::LatentLayer(const Session& session, const SelectRange& range, const IndexView& chosen,
                         const IndexView& chosen_on_host)
    : range_(range),
      chosen_(chosen),
      on_host_(chosen_on_host),
      causal_(plan(causal(), range.queries, range.entries)) {
  options_.threads = session.threads();
  const bool is_on_gpu = session.device().kind == Device::Kind::cuda;
  const DType dtype = is_on_gpu ? DType::bf16 : DType::f32;
  const auto tensors = [&](int64_t columns, int64_t values, bool has_values) {
    const auto tensor = [&](std::initializer_list<int64_t> shape) {
      return Tensor(dtype, shape, session.device());
    };
    Tensors made{.q = tensor({1, range.q_heads, range.queries, columns}),
                 .k = tensor({1, 1, range.entries, columns}),
                 .v = tensor({1, 1, has_values ? range.entries : 0, values}),
                 .out = tensor({1, range.q_heads, range.queries, values}),
                 .lse = Tensor(DType::f32, {1, range.q_heads, range.queries}, session.device())};
    made.q.fill_normal(4), made.k.fill_normal(5), made.v.fill_normal(6);
    made.out.fill_nan(), made.lse.fill_nan();
    return made;
  };
  latent_ = tensors(kLatentColumns, kLatentValues, false);
  per_head_ = tensors(kColumns, kValues, true);
  const auto beside = [&](const Tensor& tensor, int64_t columns) {
    const TensorView& view = tensor.view();
    return Tensor(dtype, {1, view.shape[1], view.shape[2], columns}, session.device());
  };
  gradients_ = {.dout = beside(latent_.q, kLatentValues),
                .dq = beside(latent_.q, kLatentColumns),
                .dk = beside(latent_.k, kLatentColumns),
                .dv = beside(latent_.k, kLatentValues)};
  gradients_.dout.fill_normal(7);
}

Pattern LatentLayer::chosen_pattern() const {
  const auto* const lists = static_cast<const int32_t*>(on_host_.data);
  const int64_t count = range_.k, offset = range_.entries - range_.queries;
  return lambda([lists, count, offset](int64_t query, int64_t key) {
    const int32_t* const list = lists + (query - offset) * count;  // ascending, then padding
    const auto less = [](int32_t a, int32_t b) { return uint32_t(a) < uint32_t(b); };  // -1 is last
    return std::binary_search(list, list + count, int32_t(key), less);
  });
}

TensorView LatentLayer::latent_values() const {
  return first_columns(latent_.k.view(), kLatentValues);
}

LatentLayer::Form LatentLayer::over_chosen() {
  return form_of(latent_, latent_values(), first_columns(latent_.k.host(), kLatentValues), chosen_,
                 chosen_pattern(), num_chosen());
}

// Five products of each pair: q . k, dout . v, and those of dq, dk and dv.
LatentLayer::Form LatentLayer::gradients_over_chosen() {
  const Lists lists = chosen_;
  const std::string kernel = kernel_for_backward(latent_.q, latent_values(), lists, options_);
  const auto run = [lists, this] {
    attention_backward(gradients_.dout, latent_.q, latent_.k, latent_values(), latent_.out,
                       latent_.lse, lists, {gradients_.dq, gradients_.dk, gradients_.dv, {}},
                       options_);
  };
  const auto check = [=, this] {
    const std::vector<int64_t> rows = judge::rows_to_check(range_.queries, 0, kCheckedRows, 1);
    judge::Finding worst;
    for (const int64_t head : {int64_t{0}, range_.q_heads - 1}) {
      keep_rows(gradients_.dout, head, rows);  // then it alone adds to dk and dv
      gradients_.dq.fill_nan(), gradients_.dk.fill_nan(), gradients_.dv.fill_nan();
      run();
      gradients_.dq.bring_back(), gradients_.dk.bring_back(), gradients_.dv.bring_back();
      worst.take(judge::judge_written("dq", gradients_.dq.host(), options_.threads));
      const judge::Answer answer{{.q = one_head(latent_.q.host(), head),
                                  .k = latent_.k.host(),
                                  .v = first_columns(latent_.k.host(), kLatentValues),
                                  .dout = one_head(gradients_.dout.host(), head),
                                  .out = {},
                                  .lse = {},
                                  .dq = one_head(gradients_.dq.host(), head),
                                  .dk = gradients_.dk.host(),
                                  .dv = gradients_.dv.host()},
                                 chosen_pattern(),
                                 options_};
      worst.take(judge::judge_backward(kernel_named(kernel), answer, rows));
      gradients_.dout.fill_normal(7);
    }
    return worst.complaint;
  };
  return {
      .kernel = kernel.substr(0, kernel.find(',')),
      .work = 2 * num_chosen() * double(range_.q_heads * (3 * kLatentColumns + 2 * kLatentValues)),
      .run = run,
      .check = check};
}

// Keys and values that all heads share are a favour to this form: a layer reads them for each head.
LatentLayer::Form LatentLayer::dense() {
  return form_of(per_head_, per_head_.v.view(), per_head_.v.host(), causal_, causal(),
                 double(causal_.explain().pairs));
}

double LatentLayer::num_chosen() const {
  const auto* const lists = static_cast<const int32_t*>(on_host_.data);
  const int64_t all = range_.queries * range_.k;
  return double(all - std::count(lists, lists + all, -1));
}

LatentLayer::Form LatentLayer::form_of(const Tensors& tensors, const TensorView& v,
                                       const TensorView& v_on_host, const Lists& lists,
                                       const Pattern& attends, double pairs) const {
  const std::string kernel = kernel_for_forward(tensors.q, v, lists, options_);
  const int64_t columns = tensors.q.view().shape[3] + v.shape[3];
  const Tensors* const these = &tensors;  // lives as long as this layer
  return {.kernel = kernel.substr(0, kernel.find(',')),
          .work = 2 * pairs * double(range_.q_heads * columns),
          .run =
              [=, this] {
                attention_forward(these->q, these->k, v, lists, these->out, these->lse, options_);
              },
          .check =
              [=, this] {
                these->out.bring_back(), these->lse.bring_back();
                judge::Finding worst =
                    judge::judge_written("out", these->out.host(), options_.threads);
                for (const int64_t head : {int64_t{0}, range_.q_heads - 1}) {
                  const judge::Answer answer{{.q = one_head(these->q.host(), head),
                                              .k = these->k.host(),
                                              .v = v_on_host,
                                              .dout = {},
                                              .out = one_head(these->out.host(), head),
                                              .lse = one_head(these->lse.host(), head),
                                              .dq = {},
                                              .dk = {},
                                              .dv = {}},
                                             attends,
                                             options_};
                  worst.take(judge::judge_forward(
                      kernel_named(kernel), answer,
                      judge::rows_to_check(range_.queries, 0, kCheckedRows, /*seed=*/1)));
                }
                return worst.complaint;
              }};
}

}  // namespace keyhole::bench
