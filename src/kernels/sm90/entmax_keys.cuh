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
  static constexpr bool kSparesRegisters = true, kChecksSums = true;
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
    const float of_x = slope(x);
    return {of_x * x, of_x};
  }
};

// The query tiles that have tiled rows.
class ChosenTiles {
 public:
  __device__ explicit ChosenTiles(const device::TiledRows& tiled) : tiled_(tiled) {}

  // Like device::TileWalk, in fewer registers: producers have none to spare.
  class Walk {
   public:
    __device__ Walk(const ChosenTiles& tiles, const device::Work& work)
        : tiled_(tiles.tiled_),
          first_word_((work.head_index * tiled_.classes + work.class_index) *
                      tiled_.words_per_class),
          run_(work.runs),
          left_(work.num_tiles) {
      if (left_ == 0) return;
      begin_run();
      for (tile_ += work.first_tile; tile_ >= end_;) {  // chunks begin inside the list
        const int32_t skip = tile_ - end_;
        ++run_;
        begin_run();
        tile_ += skip;
      }
      skip();
    }
    __device__ bool is_valid() const { return left_ > 0; }
    __device__ int32_t tile() const { return tile_; }
    __device__ int32_t bitmap() const { return bitmap_; }
    __device__ void next() {
      step();
      skip();
    }

   private:
    __device__ void begin_run() {
      const TileRun run = *run_;
      tile_ = run.tile;
      end_ = run.tile + run.count;
      bitmap_ = run.bitmap;
    }
    __device__ void step() {
      if (--left_ == 0 || ++tile_ < end_) return;
      ++run_;
      begin_run();
    }
    __device__ void skip() {
#pragma unroll 1
      while (is_valid() && !is_chosen()) step();
    }
    __device__ bool is_chosen() const {
      return (tiled_.chosen[first_word_ + tile_ / 32] >> tile_ % 32 & 1) != 0;
    }
    const device::TiledRows& tiled_;
    int32_t first_word_;  // of the head and class
    const TileRun* run_;
    int32_t left_, tile_ = 0, end_ = 0, bitmap_ = kFull;
  };

  __device__ int32_t count(const device::Work& work) const {
    int32_t tiles = 0;
#pragma unroll 1
    for (Walk walk(*this, work); walk.is_valid(); walk.next()) ++tiles;
    return tiles;
  }

 private:
  const device::TiledRows& tiled_;
};

}  // namespace keyhole::sm90
