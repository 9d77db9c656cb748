// src/kernels/sm90/entmax_delta.cuh
// delta of the tiled rows of entmax: of each row the sums of slope and slope * (dout . v) over all
// its keys, on tensor cores by wgmma. entmax_delta_shared.cuh has the pipeline.
#pragma once

#include "kernels/device/entmax_pair.cuh"
#include "kernels/sm90/entmax_delta_shared.cuh"
#include "kernels/sm90/entmax_keys.cuh"
#include "kernels/sm90/tensor_maps.h"

namespace keyhole::sm90 {

struct DeltaParams {
  device::EntmaxBackwardParams call;
  TileView view;
  EntmaxNumbers numbers;
  int32_t heads_per_section;
};
struct DeltaMaps {  // a kernel parameter: TMA reads a map at its address
  RowMaps k, v;
};

template <class C>
__device__ __forceinline__ void load_delta_tiles(const DeltaMaps& maps, const device::Work& work,
                                                 DeltaShared<C>& shared) {
  using Shared = DeltaShared<C>;
  const int32_t first_k = int32_t(work.residue.first_k);
  const ClassRows k = maps.k.of_class(first_k), v = maps.v.of_class(first_k);
  PipelineState<Shared::stages> state;
  for (device::TileWalk walk(work); walk.is_valid(); walk.next(), state.next()) {
    const int stage = state.stage;
    shared.waits.await(shared.empty[stage], state.parity ^ 1);
    shared.bitmap[stage] = walk.bitmap();
    arrive_and_expect(shared.full[stage], 2 * Shared::k_bytes);
    BoxAt at = {0, walk.tile() * C::tile_k, k.class_at, work.kv_head, work.batch};
    copy_tile<typename Shared::Keys>(shared.k[stage], k.map, shared.full[stage], at);
    at.row_class = v.class_at;
    copy_tile<typename Shared::Keys>(shared.v[stage], v.map, shared.full[stage], at);
  }
}

template <class T, class C, int kWhole>
class DeltaConsumer {
 public:
  __device__ DeltaConsumer(const DeltaParams& p, const device::Work& work, DeltaShared<C>& shared,
                           int warpgroup)
      : p_(p),
        work_(work),
        shared_(shared),
        warpgroup_(warpgroup),
        rule_(p.numbers),
        first_row_(int64_t{work.row_tile} * C::tile_q + (Shared::takes_turns ? 0 : 64 * warpgroup) +
                   thread() / 32 * 16 + lane() / 4) {}

  __device__ __forceinline__ void run() {
    const device::EntmaxBackwardParams& call = p_.call;
    load_rows(queries_, call.q, call.sizes.head_dim);
    load_rows(gradients_, call.dout, call.sizes.v_head_dim);
#pragma unroll
    for (int h = 0; h < 2; ++h) base_[h] = is_inside(h) ? call.tiled.base[row(h)] : -INFINITY;

    const int num_tiles = work_.num_tiles;
    constexpr int kTurns = Shared::takes_turns ? 2 : 1;
    if (Shared::takes_turns && warpgroup_ == 1) state_.next();
    for (int i = Shared::takes_turns ? warpgroup_ : 0; i < num_tiles; i += kTurns) {
      add_tile();
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) state_.next();
    }
    end();
  }

 private:
  using Shared = DeltaShared<C>;
  using Keys = typename Shared::Keys;
  using Products = float[C::tile_k / 2];
  using Rows = uint32_t[C::head_dim / 16][4];
  static constexpr int kMaskWords = C::tile_k / 64;

  static __device__ __forceinline__ int thread() { return int(threadIdx.x) % kWarpgroup; }
  static __device__ __forceinline__ int lane() { return int(threadIdx.x) % 32; }

  // This lane has two rows, 8 apart.
  __device__ __forceinline__ bool is_inside(int h) const {
    return first_row_ + 8 * h < work_.residue.num_q;
  }
  __device__ __forceinline__ int64_t query(int h) const {
    return work_.residue.first_q + p_.view.stride * (first_row_ + 8 * h);
  }
  __device__ __forceinline__ int64_t row(int h) const {
    return work_.head_index * p_.call.sizes.q_len + query(h);
  }

  __device__ __forceinline__ void load_rows(Rows& rows, const device::DeviceTensor& tensor,
                                            int columns) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const T* const from = tensor.row<T>(work_.batch, work_.head, query(h));
#pragma unroll
      for (int i = 0; i < C::head_dim / 8; ++i) {
        const int column = i * 8 + lane() % 4 * 2;
        rows[i / 2][i % 2 * 2 + h] = is_inside(h) && column < columns
                                         ? *reinterpret_cast<const uint32_t*>(from + column)
                                         : 0;
      }
    }
  }
  __device__ __forceinline__ void multiply(Products& products, const Rows& rows,
                                           const unsigned char* tile) const {
    const uint64_t keys = operand(smem_address(tile), Keys::bytes);
    Product<T>::template of_register_rows<true>(products, rows[0], keys);
#pragma unroll
    for (int d = 1; d < C::head_dim / 16; ++d) {
      Product<T>::template of_register_rows<false>(products, rows[d],
                                                   further(keys, d / 4 * Keys::bytes + d % 4 * 32));
    }
    commit_products();
  }
  // Pairs that do not attend get 0.
  __device__ __forceinline__ void select(Products& slopes, const uint32_t (&bits)[kMaskWords]) {
#pragma unroll
    for (int i = 0; i < C::tile_k / 2; ++i) {
      slopes[i] = (bits[i / 32] >> i % 32 & 1) != 0 ? slopes[i] : 0;
    }
  }
  __device__ __forceinline__ void load_bits(uint32_t (&bits)[kMaskWords], int32_t bitmap) const {
    constexpr int64_t kWords = C::tile_q / 16 * 32 * kMaskWords;  // of a bitmap
    const int place = (Shared::takes_turns ? 0 : warpgroup_ * kWarpgroup) + thread();
    const uint32_t* const words =
        reinterpret_cast<const uint32_t*>(p_.view.bitmaps) + bitmap * kWords + place * kMaskWords;
#pragma unroll
    for (int i = 0; i < kMaskWords; ++i) bits[i] = bitmap == kFull ? 0 : words[i];
  }

  // Slopes are computed while dout . v is multiplied.
  __device__ __forceinline__ void add_tile() {
    const int stage = state_.stage;
    shared_.waits.await(shared_.full[stage], state_.parity);
    const int32_t bitmap = warp_uniform(shared_.bitmap[stage]);
    uint32_t bits[kMaskWords];
    load_bits(bits, bitmap);
    Products slopes, values;
    begin_products();
    multiply(slopes, queries_, shared_.k[stage]);
    multiply(values, gradients_, shared_.v[stage]);
    await_products<1>();
    is_ready(slopes);
#pragma unroll
    for (int i = 0; i < C::tile_k / 2; ++i) {
      slopes[i] = rule_.slope(rule_.keep(slopes[i], base_[i / 2 % 2]));
    }
    if (bitmap != kFull) select(slopes, bits);
    await_products<0>();
    is_ready(values);
    arrive_as_warp(shared_.empty[stage]);
    // Of one tile first: rows are long, and their sums must not lose what a tile adds.
    float slope[2] = {0, 0}, sum[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < C::tile_k / 2; ++i) {
      slope[i / 2 % 2] += slopes[i];
      sum[i / 2 % 2] = fmaf(slopes[i], values[i], sum[i / 2 % 2]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      slope_[h] += slope[h];
      sum_[h] += sum[h];
    }
  }

  __device__ __forceinline__ void end() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        slope_[h] += __shfl_xor_sync(~0u, slope_[h], step);
        sum_[h] += __shfl_xor_sync(~0u, sum_[h], step);
      }
    }
    if constexpr (Shared::takes_turns) {
      float2* const others = shared_.others + thread() / 32 * 16 + lane() / 4;
      if (warpgroup_ == 1 && lane() % 4 == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) others[8 * h] = {slope_[h], sum_[h]};
      }
      meet<1, 32 * kDeltaWarps>();
      if (warpgroup_ == 1) return;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        slope_[h] += others[8 * h].x;
        sum_[h] += others[8 * h].y;
      }
    }
    if (lane() % 4 != 0) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (is_inside(h)) store(h);
    }
  }
  __device__ __forceinline__ void store(int h) const {
    const device::EntmaxBackwardParams& call = p_.call;
    float delta = 0;
    if (base_[h] > -INFINITY) {
      const float lambda = *call.lambda.row<const float>(work_.batch, work_.head, query(h));
      const float of_sink =
          device::EntmaxPairRule::of(call).sink_terms(call, work_.head, lambda).slope;
      delta = device::delta_of_row(call, work_.batch, work_.head, query(h), sum_[h],
                                   slope_[h] + of_sink);
      if (!device::is_finite(delta)) {
        call.tiled.base[row(h)] = -INFINITY;
        delta = 0;
      }
    }
    call.delta[row(h)] = delta;
  }

  const DeltaParams& p_;
  const device::Work& work_;
  Shared& shared_;
  const int warpgroup_;  // warp-uniform
  const EntmaxKeys<kWhole> rule_;
  const int64_t first_row_;  // in the residue class
  PipelineState<Shared::stages> state_;
  Rows queries_, gradients_;
  float base_[2];
  float slope_[2] = {0, 0}, sum_[2] = {0, 0};
};

// One CTA per query tile of a head.
template <class T, class C, int kWhole>
__global__ void __launch_bounds__(kDeltaThreads, 1)
    entmax_delta(const __grid_constant__ DeltaParams p, const __grid_constant__ DeltaMaps maps) {
  if (p.call.counters->any_tiled == 0) return;
  const device::Work work = device::my_work(p.call.sizes, p.view, p.heads_per_section);
  if (work.is_nothing) return;
  const uint32_t* const chosen = p.call.tiled.chosen_of(work.head_index, work.class_index);
  if ((chosen[work.row_tile / 32] >> work.row_tile % 32 & 1) == 0) return;

  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<DeltaShared<C>*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int warp = warp_uniform(int(threadIdx.x / 32));
  if (warp >= kDeltaWarps) {
    shrink_registers<kDeltaProducerRegisters>();
    if (threadIdx.x == 32 * kDeltaWarps) load_delta_tiles<C>(maps, work, shared);
  } else {
    grow_registers<kDeltaConsumerRegisters>();
    DeltaConsumer<T, C, kWhole>(p, work, shared, warp / 4).run();
    shared.waits.end();
  }
}

}  // namespace keyhole::sm90
