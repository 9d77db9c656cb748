// examples/first_attention.cpp
// The program of docs/start.md: a pattern, a plan, attention.
#include <keyhole/keyhole.h>

#include <cstdint>
#include <cstdio>
#include <vector>

using namespace keyhole;

int main() {
  const int64_t batch = 1, heads = 8, kv_heads = 2, length = 1024, head_dim = 64;

  // Each token attends to itself, the 127 tokens before it, and the first four tokens.
  const Pattern pattern = causal() & (window(127) | sinks(4));

  // Compiled once for these lengths, used for every layer and step.
  const Plan sparse =
      plan(pattern, {.batch = batch, .heads = heads, .q_len = length, .k_len = length});
  std::printf("%s", sparse.text().c_str());

  // A view is a pointer, a shape and strides: nothing is copied. Two heads of k and v serve eight
  // of q.
  std::vector<float> q(batch * heads * length * head_dim, 0.5f), out(q.size());
  std::vector<float> k(batch * kv_heads * length * head_dim, 0.5f), v(k.size(), 2.0f);
  std::vector<float> lse(batch * heads * length);
  attention_forward(TensorView(q.data(), DType::f32, {batch, heads, length, head_dim}),
                    TensorView(k.data(), DType::f32, {batch, kv_heads, length, head_dim}),
                    TensorView(v.data(), DType::f32, {batch, kv_heads, length, head_dim}), sparse,
                    TensorView(out.data(), DType::f32, {batch, heads, length, head_dim}),
                    TensorView(lse.data(), DType::f32, {batch, heads, length}));
  std::printf("out[0] = %g\n", out[0]);
}
