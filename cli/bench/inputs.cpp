// cli/bench/inputs.cpp
// Takes a case, gives its tensors, filled.
#include "cli/bench/inputs.h"

#include <cstring>

#include "base/dtype.h"

namespace keyhole::bench {
namespace {

// A well-mixed 64-bit value for each counter (splitmix64).
uint64_t mix(uint64_t counter) {
  uint64_t x = counter * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// The sum of four 16-bit uniforms has mean 2 and variance 1/3: near enough to a normal, and a
// hundred million of them take no noticeable time.
float normal(uint64_t counter) {
  const uint64_t bits = mix(counter);
  const uint64_t sum =
      (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return (float(sum) * 0x1p-16f - 2.0f) * 1.7320508f;
}

}  // namespace

Tensor::Tensor(DType dtype, std::initializer_list<int64_t> shape) : view_(nullptr, dtype, shape) {
  memory_.reset(static_cast<std::byte*>(::operator new[](num_bytes(), kAlignment)));
  view_.data = memory_.get();
}

size_t Tensor::num_bytes() const { return size_t(view_.num_elements() * bytes_of(view_.dtype)); }

void Tensor::fill_normal(uint64_t seed) {
  with_storage(view_.dtype, [&](auto storage) {
    using Storage = decltype(storage);
    auto* data = static_cast<Storage*>(view_.data);
    const int64_t count = view_.num_elements();
    for (int64_t i = 0; i < count; ++i) {
      data[i] = Traits<Storage>::from(normal((seed << 40) + uint64_t(i) + 1));
    }
  });
}

void Tensor::fill_zero() { std::memset(view_.data, 0, num_bytes()); }

// All bits set is a NaN in every dtype we have.
void Tensor::fill_nan() { std::memset(view_.data, 0xff, num_bytes()); }

TensorView head_of(const TensorView& tensor, int64_t head) {
  TensorView view = tensor;
  view.data =
      static_cast<std::byte*>(tensor.data) + head * tensor.strides[1] * bytes_of(tensor.dtype);
  view.shape[0] = view.shape[1] = 1;
  return view;
}

double read(const TensorView& tensor, int64_t head, int64_t row, int64_t column) {
  return with_storage(tensor.dtype, [&](auto storage) -> double {
    const auto* data = static_cast<const decltype(storage)*>(tensor.data);
    return to_f32(data[head * tensor.strides[1] + row * tensor.strides[2] + column]);
  });
}

Inputs::Inputs(const Case& c)
    : made_for(c),
      q(c.dtype, {1, c.heads, c.q_len, c.head_dim}),
      k(c.dtype, {1, c.kv_heads, c.k_len, c.head_dim}),
      v(c.dtype, {1, c.kv_heads, c.k_len, c.head_dim}),
      out(c.dtype, {1, c.heads, c.q_len, c.head_dim}),
      lse(c.dtype == DType::f64 ? DType::f64 : DType::f32, {1, c.heads, c.q_len}) {
  q.fill_normal(1);
  k.fill_normal(2);
  v.fill_normal(3);
  if (c.operation == Operation::forward) return;
  dout = Tensor(c.dtype, {1, c.heads, c.q_len, c.head_dim});
  dq = Tensor(c.dtype, {1, c.heads, c.q_len, c.head_dim});
  dk = Tensor(c.dtype, {1, c.kv_heads, c.k_len, c.head_dim});
  dv = Tensor(c.dtype, {1, c.kv_heads, c.k_len, c.head_dim});
  dout.fill_normal(4);
}

bool Inputs::fits(const Case& c) const {
  return made_for.q_len == c.q_len && made_for.k_len == c.k_len && made_for.heads == c.heads &&
         made_for.kv_heads == c.kv_heads && made_for.head_dim == c.head_dim &&
         made_for.dtype == c.dtype && made_for.operation == c.operation;
}

}  // namespace keyhole::bench
