// cli/bench/inputs.cpp
// Takes a case, gives its tensors, filled.
#include "cli/bench/inputs.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/dtype.h"
#include "base/int_math.h"
#include "base/parallel.h"
#include "base/random.h"
#include "plan/plan_state.h"

namespace keyhole::bench {

namespace {

// Memory for a view that lies on a GPU, to which it then points; none on the host.
template <class View>
GpuMemory on_gpu(View& view, const Device& device, int64_t bytes) {
  if (device.kind == Device::Kind::cpu) return {};
  GpuMemory memory(device, bytes);
  view.data = memory.data();
  view.device = device;
  return memory;
}

}  // namespace

Tensor::Tensor(DType dtype, std::initializer_list<int64_t> shape, const Device& device)
    : host_(nullptr, dtype, shape) {
  memory_.reset(static_cast<std::byte*>(::operator new[](size_t(num_bytes()), kAlignment)));
  host_.data = memory_.get();
  view_ = host_;
  gpu_memory_ = on_gpu(view_, device, num_bytes());
}

void Tensor::send() const {
  if (gpu_memory_.bytes() > 0) gpu_memory_.copy_from_host(host_.data, num_bytes());
}

void Tensor::bring_back() const {
  if (gpu_memory_.bytes() > 0) gpu_memory_.copy_to_host(host_.data, num_bytes());
}

void Tensor::fill_normal(uint64_t seed) {
  constexpr int64_t kPiece = 1 << 16;
  const int64_t count = host_.num_elements();
  with_index_storage(host_.dtype, [&](auto storage) {
    using Storage = decltype(storage);
    auto* data = static_cast<Storage*>(host_.data);
    parallel_for(ceil_div(count, kPiece), /*threads=*/0, [&](int64_t piece, int) {
      const int64_t end = std::min(count, (piece + 1) * kPiece);
      for (int64_t i = piece * kPiece; i < end; ++i) {
        data[i] = Traits<Storage>::from(float(Random::at(seed << 40, i).quick_normal()));
      }
    });
  });
  send();
}

void Tensor::fill_bytes(int byte) {
  std::memset(host_.data, byte, size_t(num_bytes()));
  if (gpu_memory_.bytes() > 0) gpu_memory_.fill(byte);
}

void Tensor::fill_zero() { fill_bytes(0); }

// All bits set is a NaN in every dtype we have.
void Tensor::fill_nan() { fill_bytes(0xff); }
void Tensor::begin_with_nan() {
  std::memset(host_.data, 0xff, size_t(bytes_of(host_.dtype)));
  send();
}

void Tensor::keep_rows(const std::vector<int64_t>& rows, std::optional<int64_t> of_head) {
  const int64_t length = host_.shape[2], row_bytes = host_.shape[3] * bytes_of(host_.dtype);
  std::vector<bool> is_kept(static_cast<size_t>(length));
  for (const int64_t row : rows) is_kept[size_t(row)] = true;
  for (int64_t i = 0; i < host_.shape[1] * length; ++i) {
    if (is_kept[size_t(i % length)] && i / length == of_head.value_or(i / length)) continue;
    std::memset(static_cast<std::byte*>(host_.data) + i * row_bytes, 0, size_t(row_bytes));
  }
  send();
}

KeyIndices::KeyIndices(const Case& c, const Plan& plan, bool is_wide) {
  const std::vector<KeyLists>& parts = plan.state().gathers();
  KEYHOLE_CHECK(
      parts.size() == 1 && plan.explain().parts.size() == 1 && parts[0].groups == 1,
      "bench: ", c.name, " (", c.pattern_text,
      ") is not a plan of key lists alone, the same for all heads; --indices is for those");
  const KeyLists& lists = parts[0];
  const int64_t count = *std::ranges::max_element(lists.list_count);
  wide_.assign(size_t(c.q_len * count), -1);
  for (int64_t query = 0; query < c.q_len; ++query) {
    std::copy_n(lists.keys.begin() + lists.list_begin[size_t(query)],
                lists.list_count[size_t(query)], wide_.begin() + query * count);
  }
  narrow_.assign(wide_.begin(), wide_.end());
  view_ = is_wide ? IndexView(wide_.data(), {1, 1, c.q_len, count})
                  : IndexView(narrow_.data(), {1, 1, c.q_len, count});
  const void* const host = view_.data;
  gpu_memory_ = on_gpu(view_, c.device, int64_t(wide_.size()) * (is_wide ? 8 : 4));
  if (gpu_memory_.bytes() > 0) gpu_memory_.copy_from_host(host, gpu_memory_.bytes());
}

SupportKeys::SupportKeys(const Case& c)
    : keys_(size_t(c.heads * c.q_len * kSupportKeys), -1),
      view_(keys_.data(), {1, c.heads, c.q_len, kSupportKeys}),
      gpu_memory_(on_gpu(view_, c.device, num_bytes())) {}

const std::vector<int32_t>& SupportKeys::bring_back() {
  if (gpu_memory_.bytes() > 0) gpu_memory_.copy_to_host(keys_.data(), num_bytes());
  return keys_;
}

judge::CallTensors Tensors::host() const {
  return {.q = q.host(),
          .k = k.host(),
          .v = v.host(),
          .dout = dout.host(),
          .out = out.host(),
          .lse = lse.host(),
          .dq = dq.host(),
          .dk = dk.host(),
          .dv = dv.host()};
}

Inputs::Inputs(const Case& c) : made_for(c) {
  const auto of_queries = [&] {
    return Tensor(c.dtype, {1, c.heads, c.q_len, c.head_dim}, c.device);
  };
  const auto of_keys = [&] {
    return Tensor(c.dtype, {1, c.kv_heads, c.k_len, c.head_dim}, c.device);
  };
  q = of_queries(), k = of_keys(), v = of_keys(), out = of_queries();
  lse = Tensor(c.dtype == DType::f64 ? DType::f64 : DType::f32, {1, c.heads, c.q_len}, c.device);
  q.fill_normal(1), k.fill_normal(2), v.fill_normal(3);
  if (c.has_nan) v.begin_with_nan();
  if (c.operation == Operation::forward) return;
  dout = of_queries(), dq = of_queries(), dk = of_keys(), dv = of_keys();
  dout.fill_normal(4);
}

void Inputs::run_forward(const Lists& lists, const AttentionOptions& options) const {
  attention_forward(q, k, v, lists, out, lse, options);
}

void Inputs::run_backward(const Lists& lists, const AttentionOptions& options) const {
  attention_backward(dout, q, k, v, out, lse, lists, {dq, dk, dv, {}}, options);
}

int64_t Inputs::num_bytes() const {
  int64_t bytes = 0;
  for (const Tensor* tensor : {&q, &k, &v, &out, &lse, &dout, &dq, &dk, &dv}) {
    if (tensor->view().is_given()) bytes += tensor->num_bytes();
  }
  return bytes;
}

bool Inputs::fits(const Case& c) const {
  return made_for.q_len == c.q_len && made_for.k_len == c.k_len && made_for.heads == c.heads &&
         made_for.kv_heads == c.kv_heads && made_for.head_dim == c.head_dim &&
         made_for.dtype == c.dtype && made_for.operation == c.operation &&
         made_for.has_nan == c.has_nan && made_for.device == c.device;
}

TensorView part_of(TensorView view, int d, int64_t first, int64_t count) {
  view.data = static_cast<std::byte*>(view.data) + first * view.strides[d] * bytes_of(view.dtype);
  view.shape[d] = count;
  return view;
}

}  // namespace keyhole::bench
