// src/api/merge.cpp
// Merges two results over disjoint keys: each is weighted by its sum of exponentials.
#include <cmath>
#include <limits>

#include "api/check_arguments.h"
#include "base/dtype.h"
#include "base/weight_rule.h"
#include "keyhole/attention.h"
#include "runtime/gpu.h"

namespace keyhole {
namespace {

// Weights of a and b, and the common lse. A row that attended to nothing has lse -inf and is
// neutral: the other side stays as it is, even a NaN. Without this rule (-inf) - (-inf) would turn
// two empty rows into NaN.
struct Weights {
  double a, b, lse;
};
Weights weigh(double a, double b) {
  constexpr double kEmpty = -std::numeric_limits<double>::infinity();
  if (b == kEmpty) return {a == kEmpty ? 0.0 : 1.0, 0, a};
  if (a == kEmpty) return {0, 1, b};
  const double high = std::max(a, b);
  const double sum = std::exp(a - high) + std::exp(b - high);
  return {std::exp(a - high) / sum, std::exp(b - high) / sum, high + std::log(sum)};
}

template <class T>
T& element(const TensorView& tensor, int64_t b, int64_t h, int64_t i, int64_t d = 0) {
  int64_t at = b * tensor.strides[0] + h * tensor.strides[1] + i * tensor.strides[2];
  if (tensor.rank == 4) at += d * tensor.strides[3];
  return static_cast<T*>(tensor.data)[at];
}

template <class Storage, class Lse>
void merge_row(const TensorView& into_out, const TensorView& into_lse, const TensorView& from_out,
               const TensorView& from_lse, int64_t b, int64_t h, int64_t i) {
  Lse& lse = element<Lse>(into_lse, b, h, i);
  const double from = element<Lse>(from_lse, b, h, i);
  const Weights weight = weigh(lse, from);
  for (int64_t d = 0; d < into_out.shape[3]; ++d) {
    Storage& out = element<Storage>(into_out, b, h, i, d);
    // A side without weight is skipped, not multiplied by 0: it may hold anything.
    double sum = 0;
    if (weight.a != 0) sum += weight.a * double(to_f32(out));
    if (weight.b != 0) sum += weight.b * double(to_f32(element<Storage>(from_out, b, h, i, d)));
    out = Traits<Storage>::from(typename Traits<Storage>::Compute(sum));
  }
  lse = Lse(weight.lse);
}

}  // namespace

void merge(const TensorView& into_out, const TensorView& into_lse, const TensorView& from_out,
           const TensorView& from_lse, void* stream, const Normalizer& normalizer) {
  check_merge(into_out, into_lse, from_out, from_lse);
  check_statistics_add_up(facts_of(normalizer), "merge", "attend to all keys in one call");
  if (into_out.device.kind == Device::Kind::cuda) {
    return merge_on_gpu(into_out, into_lse, from_out, from_lse, stream);
  }
  with_storage(into_out.dtype, [&](auto storage) {
    using Storage = decltype(storage);
    using Lse = typename Traits<Storage>::Compute;
    for (int64_t b = 0; b < into_out.shape[0]; ++b) {
      for (int64_t h = 0; h < into_out.shape[1]; ++h) {
        for (int64_t i = 0; i < into_out.shape[2]; ++i) {
          merge_row<Storage, Lse>(into_out, into_lse, from_out, from_lse, b, h, i);
        }
      }
    }
  });
}

}  // namespace keyhole
