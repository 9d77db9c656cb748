// src/kernels/cpu/select_primitives.cpp
// Compiles the primitives of selections once per instruction set and picks the best table at run
// time.
#include "kernels/cpu/select_primitives.h"

#if KEYHOLE_HAVE_HWY
#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select_primitives.cpp"
#include "hwy/foreach_target.h"  // includes this file again for every instruction set
#endif

#include "kernels/cpu/select-inl.h"

KEYHOLE_SIMD_BEGIN

template <class T>
const SelectPrimitives<T>& select_table() {
  static const SelectPrimitives<T> filled = {
      .relu_sum = relu_sum<T>,
      .relu_gradient = relu_gradient<T>,
      .add_powers = add_powers<T>,
      .collect_above = collect_above<T>,
      .kth_largest = kth_largest<T>,
      .take_best = take_best<T>,
  };
  return filled;
}
const SelectPrimitives<float>& select_f32() { return select_table<float>(); }
const SelectPrimitives<double>& select_f64() { return select_table<double>(); }

KEYHOLE_SIMD_END

#if !KEYHOLE_HAVE_HWY || HWY_ONCE
namespace keyhole::cpu {

#if KEYHOLE_HAVE_HWY
HWY_EXPORT(select_f32);
HWY_EXPORT(select_f64);
#define KEYHOLE_BEST(function) HWY_DYNAMIC_DISPATCH(function)
#else
#define KEYHOLE_BEST(function) plain::function
#endif

template <>
const SelectPrimitives<float>& select_primitives<float>() {
  return KEYHOLE_BEST(select_f32)();
}
template <>
const SelectPrimitives<double>& select_primitives<double>() {
  return KEYHOLE_BEST(select_f64)();
}

}  // namespace keyhole::cpu
#endif
