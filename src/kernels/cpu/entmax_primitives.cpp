// src/kernels/cpu/entmax_primitives.cpp
// Compiles the primitives of entmax once per instruction set and picks the best table at run time.
#include "kernels/cpu/entmax_primitives.h"

#if KEYHOLE_HAVE_HWY
#include "kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/entmax_primitives.cpp"
#include "hwy/foreach_target.h"  // includes this file again for every instruction set
#endif

#include "kernels/cpu/collect-inl.h"
#include "kernels/cpu/entmax-inl.h"

KEYHOLE_SIMD_BEGIN

template <class Storage>
const EntmaxPrimitives<Storage>& entmax_table() {
  using T = typename Traits<Storage>::Compute;
  static const EntmaxPrimitives<Storage> filled = {
      .cap = cap<T>,
      .collect = collect<T>,
      .solve = solve<T>,
      .raise = raise<T>,
      .drop = drop<T>,
      .weigh = weigh<T>,
      .gather_dots = gather_dots<Storage, T>,
      .gather_sum = gather_sum<Storage, T>,
      .scatter = scatter<T>,
  };
  return filled;
}
const EntmaxPrimitives<float>& entmax_f32() { return entmax_table<float>(); }
const EntmaxPrimitives<double>& entmax_f64() { return entmax_table<double>(); }
const EntmaxPrimitives<Half>& entmax_f16() { return entmax_table<Half>(); }
const EntmaxPrimitives<BFloat16>& entmax_bf16() { return entmax_table<BFloat16>(); }

KEYHOLE_SIMD_END

#if !KEYHOLE_HAVE_HWY || HWY_ONCE
namespace keyhole::cpu {

#if KEYHOLE_HAVE_HWY
HWY_EXPORT(entmax_f32);
HWY_EXPORT(entmax_f64);
HWY_EXPORT(entmax_f16);
HWY_EXPORT(entmax_bf16);
#define KEYHOLE_BEST(function) HWY_DYNAMIC_DISPATCH(function)
#else
#define KEYHOLE_BEST(function) plain::function
#endif

template <>
const EntmaxPrimitives<float>& entmax_primitives<float>() {
  return KEYHOLE_BEST(entmax_f32)();
}
template <>
const EntmaxPrimitives<double>& entmax_primitives<double>() {
  return KEYHOLE_BEST(entmax_f64)();
}
template <>
const EntmaxPrimitives<Half>& entmax_primitives<Half>() {
  return KEYHOLE_BEST(entmax_f16)();
}
template <>
const EntmaxPrimitives<BFloat16>& entmax_primitives<BFloat16>() {
  return KEYHOLE_BEST(entmax_bf16)();
}

}  // namespace keyhole::cpu
#endif
