// src/kernels/cpu/primitives.cpp
// Compiles the primitives once per instruction set and picks the best table at run time.
#include "kernels/cpu/primitives.h"

#if KEYHOLE_HAVE_HWY
#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/primitives.cpp"
#include "hwy/foreach_target.h"  // includes this file again for every instruction set
#endif

#include "kernels/cpu/gemm-inl.h"
#include "kernels/cpu/rows-inl.h"
#include "kernels/cpu/softmax-inl.h"

KEYHOLE_SIMD_BEGIN

#if KEYHOLE_HAVE_HWY
inline const char* target_name() { return hwy::TargetName(HWY_TARGET); }
#else
inline const char* target_name() { return "plain C++"; }
#endif

template <class Storage>
const Primitives<Storage>& table() {
  using T = typename Traits<Storage>::Compute;
  static const Primitives<Storage> filled = {
      .target = target_name(),
      .lanes = int64_t(hn::Lanes(Tag<T>())),
      .gemm = gemm<T>,
      .load_rows = load_rows<Storage, T>,
      .store_rows = store_rows<Storage, T>,
      .load_columns = load_columns<Storage, T>,
      .zip_rows = zip_rows,
      .load_word_columns = load_word_columns,
      .row_dots = row_dots<Storage, T>,
      .add_row = add_row<T>,
      .sum_lanes = sum_lanes<T>,
      .mask = mask<T>,
      .score = score<T>,
      .softmax = softmax<Storage>,
      .score_gradient = score_gradient<Storage>,
      .gather_dots = gather_dots<T>,
      .gather_sum = gather_sum<T>,
  };
  return filled;
}
const Primitives<float>& table_f32() { return table<float>(); }
const Primitives<double>& table_f64() { return table<double>(); }
const Primitives<Half>& table_f16() { return table<Half>(); }
const Primitives<BFloat16>& table_bf16() { return table<BFloat16>(); }

KEYHOLE_SIMD_END

#if !KEYHOLE_HAVE_HWY || HWY_ONCE
namespace keyhole::cpu {

#if KEYHOLE_HAVE_HWY
HWY_EXPORT(table_f32);
HWY_EXPORT(table_f64);
HWY_EXPORT(table_f16);
HWY_EXPORT(table_bf16);
#define KEYHOLE_BEST(function) HWY_DYNAMIC_DISPATCH(function)
#else
#define KEYHOLE_BEST(function) plain::function
#endif

template <>
const Primitives<float>& primitives<float>() {
  return KEYHOLE_BEST(table_f32)();
}
template <>
const Primitives<double>& primitives<double>() {
  return KEYHOLE_BEST(table_f64)();
}
template <>
const Primitives<Half>& primitives<Half>() {
  return KEYHOLE_BEST(table_f16)();
}
template <>
const Primitives<BFloat16>& primitives<BFloat16>() {
  return KEYHOLE_BEST(table_bf16)();
}

}  // namespace keyhole::cpu
#endif
