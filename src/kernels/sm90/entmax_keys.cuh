// src/kernels/sm90/entmax_keys.cuh
// What the backward kernels make of a product, for entmax (base/entmax.h): the Rule of
// backward_keys.cuh, and which query tiles it follows.
#pragma once

#include "kernels/device/entmax_backward_params.h"
#include "kernels/device/work.cuh"
#include "kernels/sm90/softmax_keys.cuh"

namespace keyhole::sm90 {

struct EntmaxNumbers {
  float unit;            // x = unit * product + base of the row
  float power_of_slope;  // r - 1: the slope is x^(r - 1)
};

// kWhole: r, if it is 2 or 4 (alpha 1.5 and 1.25), which multiplications compute; 0: any other.
template <int kWhole>
struct EntmaxKeys {
  using Numbers = EntmaxNumbers;
  static constexpr bool kPacksAtOnce = true, kMeetsRowLate = false;
  static constexpr bool kChecksSums = true;
  const Numbers& numbers;

  __device__ __forceinline__ explicit EntmaxKeys(const Numbers& of_call) : numbers(of_call) {}

  // x; 0 against a base of -inf.
  __device__ __forceinline__ float keep(float product, float base) const {
    return fmaxf(fmaf(product, numbers.unit, base), 0.f);
  }
  __device__ __forceinline__ float slope(float x) const {
    if constexpr (kWhole == 4) return x * x * x;
    if constexpr (kWhole == 2) return x;
    // Also for r = 1, where 0 times the logarithm of 0 would be NaN.
    const float power = device::exp2_fast(numbers.power_of_slope * device::log2_fast(x));
    return x > 0 ? power : 0.f;
  }
  __device__ __forceinline__ PairTerms terms(float x, float) const {
    if constexpr (kWhole == 4) {
      const float square = x * x;
      return {square * square, square * x};
    }
    const float of_x = slope(x);
    return {of_x * x, of_x};
  }
};

// The query tiles that have tiled rows.
class ChosenTiles {
 public:
  __device__ explicit ChosenTiles(const device::TiledRows& tiled) : tiled_(tiled) {}

  class Walk : public device::TileWalk {
   public:
    __device__ Walk(const ChosenTiles& tiles, const device::Work& work)
        : TileWalk(work), chosen_(tiles.tiled_.chosen_of(work.head_index, work.class_index)) {
      skip();
    }
    __device__ void next() {
      TileWalk::next();
      skip();
    }

   private:
    __device__ void skip() {
      while (is_valid() && (chosen_[tile() / 32] >> tile() % 32 & 1) == 0) TileWalk::next();
    }
    const uint32_t* chosen_;  // of the head and class
  };

  __device__ int32_t count(const device::Work& work) const {
    int32_t tiles = 0;
    for (Walk walk(*this, work); walk.is_valid(); walk.next()) ++tiles;
    return tiles;
  }

 private:
  const device::TiledRows& tiled_;
};

}  // namespace keyhole::sm90
