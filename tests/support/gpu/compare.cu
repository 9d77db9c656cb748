// tests/support/gpu/compare.cu
#include <cmath>

#include "support/gpu/compare.h"
#include "support/gpu/pairs.cuh"
#include "support/rounding.h"

namespace keyhole::test {
namespace {

__device__ void found_wrong(Verdict* verdict, int64_t index) {
  atomicMax(&verdict->wrong, ~0ull - (unsigned long long)(index));
}

__device__ double sum_of_warp(double value) {  // in lane 0; all lanes come here
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(~0u, value, step);
  return value;
}

__global__ void values(int64_t count, TensorView got, ExpectedOnGpu expected, Verdict* verdict) {
  double worst = 0, error = 0, plain = 0, bound = 0;
  for (int64_t i = first_index(); i < count; i += index_step()) {
    const ElementVerdict found = judge_element(got.dtype, element(got, i), expected.want[i],
                                               expected.bound[i], expected.plain[i]);
    if (found.is_wrong) found_wrong(verdict, i);
    if (found.share > worst) worst = found.share;
    error += found.error * found.error;
    plain += found.plain * found.plain;
    bound += found.bound * found.bound;
  }
  // Numbers that are not negative have the order of their bits.
  if (worst > 0) atomicMax(&verdict->worst, (unsigned long long)(__double_as_longlong(worst)));
  error = sum_of_warp(error), plain = sum_of_warp(plain), bound = sum_of_warp(bound);
  if (threadIdx.x % 32 != 0) return;
  atomicAdd(&verdict->error, error);
  atomicAdd(&verdict->plain, plain);
  atomicAdd(&verdict->bound, bound);
}

__device__ uint64_t bits_of(const TensorView& tensor, int64_t place) {
  switch (tensor.dtype) {
    case DType::e4m3:
      return static_cast<const uint8_t*>(tensor.data)[place];
    case DType::f16:
    case DType::bf16:
      return static_cast<const uint16_t*>(tensor.data)[place];
    case DType::f32:
      return static_cast<const uint32_t*>(tensor.data)[place];
    case DType::f64:
      break;
  }
  return static_cast<const uint64_t*>(tensor.data)[place];
}

__global__ void bits(int64_t count, TensorView a, TensorView b, Verdict* verdict) {
  for (int64_t i = first_index(); i < count; i += index_step()) {
    const int64_t a_place = place_of(a, i), b_place = place_of(b, i);
    if (bits_of(a, a_place) == bits_of(b, b_place)) continue;
    if (!(std::isnan(load(a, a_place)) && std::isnan(load(b, b_place)))) found_wrong(verdict, i);
  }
}

__global__ void words(int64_t count, const uint16_t* a, const uint16_t* b, Verdict* verdict) {
  for (int64_t i = first_index(); i < count; i += index_step()) {
    if (a[i] != b[i]) found_wrong(verdict, i);
  }
}

__global__ void pattern_words(int64_t count, const uint16_t* memory, uint16_t pattern,
                              Verdict* verdict) {
  for (int64_t i = first_index(); i < count; i += index_step()) {
    if (memory[i] != pattern) found_wrong(verdict, i);
  }
}

__device__ int64_t count_keys(const ReferenceInputs& in, int64_t row) {
  int64_t keys = 0;
  for_each_key(in, row, [&](int64_t, int64_t) { ++keys; });
  return keys;
}

__global__ void counts(int64_t num_rows, ReferenceInputs in, TensorView lse, Verdict* verdict) {
  for (int64_t row = first_index(); row < num_rows; row += index_step()) {
    const int64_t want = count_keys(in, row);
    const double got = element(lse, row);
    if (!(want == 0 ? got == -INFINITY : llround(exp(got)) == want)) found_wrong(verdict, row);
  }
}

__global__ void empty_rows(int64_t num_rows, ReferenceInputs in, TensorView out, TensorView lse,
                           TensorView dq, Verdict* verdict) {
  for (int64_t row = first_index(); row < num_rows; row += index_step()) {
    if (count_keys(in, row) != 0) continue;
    const double got = element(lse, row);
    bool is_right = got == -INFINITY;
    if (in.sink.rank != 0) {
      const double sink = sink_of(in, RowPlace(in, row).head);
      is_right = std::abs(got - sink) <= 0x1p-22 * std::abs(sink);
    }
    for (int64_t x = 0; x < in.v_head_dim; ++x) {
      is_right = is_right && bits_of(out, place_of(out, row * in.v_head_dim + x)) == 0;
    }
    for (int64_t x = 0; dq.rank != 0 && x < in.head_dim; ++x) {
      is_right = is_right && element(dq, row * in.head_dim + x) == 0;
    }
    if (!is_right) found_wrong(verdict, row);
  }
}

}  // namespace

void compare_values(const TensorView& got, const ExpectedOnGpu& expected, Verdict* verdict) {
  launch_over(got.num_elements(), values, got, expected, verdict);
}
void compare_bits(const TensorView& a, const TensorView& b, Verdict* verdict) {
  launch_over(a.num_elements(), bits, a, b, verdict);
}
void compare_words(const void* a, const void* b, int64_t bytes, Verdict* verdict) {
  launch_over(bytes / 2, words, static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b),
              verdict);
}
void compare_with_pattern(const void* memory, int64_t bytes, uint16_t pattern, Verdict* verdict) {
  launch_over(bytes / 2, pattern_words, static_cast<const uint16_t*>(memory), pattern, verdict);
}
void compare_counts(const ReferenceInputs& in, const TensorView& lse, Verdict* verdict) {
  launch_over(in.num_rows(), counts, in, lse, verdict);
}
void check_empty_rows(const ReferenceInputs& in, const TensorView& out, const TensorView& lse,
                      const TensorView& dq, Verdict* verdict) {
  launch_over(in.num_rows(), empty_rows, in, out, lse, dq, verdict);
}

}  // namespace keyhole::test
