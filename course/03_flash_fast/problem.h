// course/03_flash_fast/problem.h
// What all steps share: one problem, one check, one stopwatch, one line of output. Dense attention,
// bf16, 16 heads of head_dim 128, one batch entry; 4096 tokens, or as many as the argument says.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "common/gpu.h"

namespace course {

using bf16 = __nv_bfloat16;

inline constexpr int kHeads = 16, kHeadDim = 128;
inline constexpr float kScale = 0.08838834764831845f;  // 1 / sqrt(128)
// exp(scale * x) is 2^(kScaleLog2 * x), and 2^x is one instruction.
inline constexpr float kScaleLog2 = kScale * 1.4426950408889634f;

// All four are [heads][length][head_dim], in the memory of the GPU.
struct Tensors {
  const bf16 *q, *k, *v;
  bf16* out;
  int length;
};

// Numbers that are nearly normal, times `spread`, from hashed indices: every element has its own,
// and no program waits for a host to draw 25 million of them.
static __global__ void fill(bf16* values, std::size_t count, std::uint64_t seed, float spread) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  std::uint64_t x = (i + seed * count) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  // Four uniform numbers of 16 bits: their sum has the mean 131070, the deviation 65536 / sqrt(3).
  const auto sum = float((x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48));
  values[i] = __float2bfloat16((sum - 131070.0f) / 37837.0f * spread);
}

// The largest difference from attention in fp64, relative to numbers above 1, over 128 rows: they
// fall on every place in a tile of 128, on tiles all over the sequence, and on every head. NaN if
// any number of out is not finite: out was poisoned with NaN before.
inline double largest_error(const std::vector<bf16>& q, const std::vector<bf16>& k,
                            const std::vector<bf16>& v, const std::vector<bf16>& out, int length) {
  for (const bf16 value : out) {
    if (!std::isfinite(__bfloat162float(value))) return NAN;
  }
  double largest = 0;
  std::vector<double> weights(static_cast<std::size_t>(length));
  for (int sample = 0; sample < 128; ++sample) {
    const std::size_t head = std::size_t(sample * 5 + sample / 16) % kHeads;
    const std::size_t row = std::size_t(sample * 5 % (length / 128) * 128 + sample);
    const std::size_t first = head * std::size_t(length) * kHeadDim;  // of the head
    double query[kHeadDim], sum = 0, top = -INFINITY, want[kHeadDim] = {};
    for (int d = 0; d < kHeadDim; ++d) query[d] = __bfloat162float(q[first + row * kHeadDim + d]);
    for (int j = 0; j < length; ++j) {
      double product = 0;
      const bf16* key = &k[first + std::size_t(j) * kHeadDim];
      for (int d = 0; d < kHeadDim; ++d) product += query[d] * double(__bfloat162float(key[d]));
      weights[j] = product * double(kScale);
      top = std::fmax(top, weights[j]);
    }
    for (int j = 0; j < length; ++j) {
      const double weight = std::exp(weights[j] - top);
      const bf16* value = &v[first + std::size_t(j) * kHeadDim];
      for (int d = 0; d < kHeadDim; ++d) want[d] += weight * double(__bfloat162float(value[d]));
      sum += weight;
    }
    for (int d = 0; d < kHeadDim; ++d) {
      const double got = __bfloat162float(out[first + row * kHeadDim + d]), exact = want[d] / sum;
      largest = std::fmax(largest, std::abs(got - exact) / std::fmax(1, std::abs(exact)));
    }
  }
  return largest;
}

// Makes the problem, checks what `launch` computes, times it, and prints the line that all steps
// print. `launch` queues the work on the default stream. Returns the status to exit with.
template <class Launch>
int run_step(const char* name, int argc, char** argv, Launch&& launch) {
  const int length = argc > 1 ? std::atoi(argv[1]) : 4096;
  if (length < 128 || length > 65536 || length % 128 != 0) {
    std::printf("the length must be a multiple of 128, at most 65536\n");
    return 2;
  }
  const std::size_t count = std::size_t(kHeads) * std::size_t(length) * kHeadDim;
  GpuArray<bf16> q(count), k(count), v(count), out(count);
  const auto blocks = unsigned((count + 255) / 256);
  fill<<<blocks, 256>>>(q.data(), count, 1, 2.0f);  // scores of deviation 2: weights of all sizes
  fill<<<blocks, 256>>>(k.data(), count, 2, 1.0f);
  fill<<<blocks, 256>>>(v.data(), count, 3, 1.0f);
  out.poison();
  const Tensors tensors = {q.data(), k.data(), v.data(), out.data(), length};

  launch(tensors);
  GPU(cudaGetLastError());
  GPU(cudaDeviceSynchronize());
  const double error = largest_error(q.to_host(), k.to_host(), v.to_host(), out.to_host(), length);

  const auto run = [&] { launch(tensors); };
  const double once = gpu_milliseconds(run, 1, 1);
  const int calls = int(std::fmin(std::fmax(40 / once, 1), 40));  // groups of about 40 ms
  const double milliseconds = gpu_milliseconds(run, calls);
  const double flops = 4.0 * kHeads * kHeadDim * double(length) * double(length);
  std::printf("%s: %.3f ms, %.1f TFLOP/s, largest error %.5f\n", name, milliseconds,
              flops / milliseconds * 1e-9, error);
  if (error <= 0.01) return 0;
  std::printf("the result is wrong: at most 0.01 is expected\n");
  return 1;
}

}  // namespace course
