// src/kernels/sm90/entmax_scan.cuh
// The scan of entmax and top_k: q . k' over the tile lists of a plan, on tensor cores by wgmma, and
// of each row the candidates: the keys that may have weight. entmax_scan_shared.cuh has the
// pipeline, entmax_lane_lists.cuh the lists.
//
// A query tile is processed in two passes over its key tiles:
//   look    every n-th tile: of each row the maximum of each lane's columns. They give a bound.
//   scan    every tile: products above the bound go to lists; a list that fills up is cleaned.
#pragma once

#include <type_traits>

#include "base/check.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/entmax_solve.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/storage.h"
#include "kernels/sm90/entmax_lane_lists.cuh"
#include "kernels/sm90/entmax_launch.h"
#include "kernels/sm90/entmax_scan_producer.cuh"

namespace keyhole::sm90 {

template <class T, class C, bool kPlain>
class ScanConsumer {
 public:
  // warp: index among the consumer warps.
  __device__ ScanConsumer(const ScanParams& p, const BoundRule<kPlain>& rule, ScanShared<C>& shared,
                          int warp)
      : p_(p),
        shared_(shared),
        warp_(warp),
        words_(reinterpret_cast<const uint32_t*>(p.view.bitmaps) +
               (warp * 32 + lane()) * kMaskWords),
        lists_(rule, smem_address(shared.lists[warp]) + uint32_t(lane() * 8)) {}

  __device__ __forceinline__ void run() {
    Products first, second;
    for (uint32_t num_items = 0;; ++num_items) {
      await_keys();
      const ScanItem& item = shared_.items[num_items % (C::stages + 1)];
      const int num_tiles = warp_uniform(item.num_tiles);
      if (num_tiles == 0) return;
      load_queries(item);
      const int num_looks = warp_uniform(item.num_looks);
      look(first, second, num_looks);
      if (row() >= item.num_rows) lists_.template close<0>();
      if (row() + 8 >= item.num_rows) lists_.template close<1>();
      scan(first, second, num_tiles, num_looks > 0);
      write<0>(item);
      write<1>(item);
    }
  }

 private:
  using Products = float[kScanKeys / 2];
  using Keys = typename ScanShared<C>::Keys;
  static constexpr int kMaskWords = kScanKeys / 64;
  using Bits = uint32_t[kMaskWords];

  static __device__ __forceinline__ int lane() { return int(threadIdx.x) % 32; }
  // The first of this lane's two rows in the query tile; the other one is 8 further.
  __device__ __forceinline__ int row() const { return warp_ * 16 + lane() / 4; }

  __device__ __forceinline__ void await_keys() {
    shared_.waits.await(shared_.full[k_.stage], k_.parity);
  }
  __device__ __forceinline__ void load_queries(const ScanItem& item) {
    const T* const rows[2] = {query_row(item, row()), query_row(item, row() + 8)};
#pragma unroll
    for (int d = 0; d < C::head_dim / 16; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int col = d * 16 + i / 2 * 8 + lane() % 4 * 2;
        const bool is_inside = row() + i % 2 * 8 < item.num_rows && col < p_.sizes.head_dim;
        queries_[d][i] = is_inside ? *reinterpret_cast<const uint32_t*>(rows[i % 2] + col) : 0;
      }
    }
  }
  __device__ __forceinline__ const T* query_row(const ScanItem& item, int row) const {
    return p_.q.row<T>(item.batch, item.head, item.first_query + p_.view.stride * row);
  }

  __device__ __forceinline__ void multiply(Products& products) {
    const uint64_t keys = operand(smem_address(shared_.k[k_.stage]), Keys::bytes);
    begin_products();
    Product<T>::template of_register_rows<true>(products, queries_[0], keys);
#pragma unroll
    for (int d = 1; d < C::head_dim / 16; ++d) {
      Product<T>::template of_register_rows<false>(products, queries_[d],
                                                   further(keys, d / 4 * Keys::bytes + d % 4 * 32));
    }
    commit_products();
  }
  // Leaves bits as they are in a full tile.
  __device__ __forceinline__ void load_bits(Bits& bits, int32_t bitmap) const {
    constexpr uint32_t kWords = kScanWarps * 32 * kMaskWords;  // of a bitmap
    bits[0] = bits[1] = 0;
    const uint32_t* const at = words_ + uint64_t{uint32_t(bitmap)} * kWords;
    asm volatile("{\n.reg .pred p;\nsetp.ge.s32 p, %2, 0;\n@p ld.global.v2.u32 {%0, %1}, [%3];\n}"
                 : "+r"(bits[0]), "+r"(bits[1])
                 : "r"(bitmap), "l"(at)
                 : "memory");
  }
  static __device__ __forceinline__ void apply_mask(Products& products, const Bits& bits) {
#pragma unroll
    for (int i = 0; i < kScanKeys / 2; ++i) {
      products[i] = (bits[i / 32] >> i % 32 & 1) != 0 ? products[i] : -INFINITY;
    }
  }

  // A tile whose products have been issued.
  struct Tile {
    int stage;
    int32_t bitmap, tile;
    Bits bits;
  };
  // has_arrived: false multiplies stale shared memory, for a result that nobody reads.
  __device__ __forceinline__ Tile issue(Products& products, bool has_arrived) {
    Tile tile;
    tile.stage = k_.stage;
    tile.bitmap = has_arrived ? warp_uniform(shared_.bitmap[k_.stage]) : kFull;
    tile.tile = shared_.tile[k_.stage];
    load_bits(tile.bits, tile.bitmap);
    multiply(products);
    return tile;
  }
  // Its products have arrived.
  __device__ __forceinline__ void release(Products& products, const Tile& tile) {
    is_ready(products);
    arrive_as_warp(shared_.empty[tile.stage]);
    if (tile.bitmap != kFull) apply_mask(products, tile.bits);
  }

  // Calls visit(products, tile) for `count` tiles, two at a time. The products of both are issued,
  // and read, in one round: ptxas serialises those that are read in the next round of a loop. After
  // the last one of an odd number, stale shared memory is multiplied; the result is unused.
  template <class Visit, class EndRound>
  __device__ __forceinline__ void for_each_tile(Products& first, Products& second, int count,
                                                bool is_first_here, Visit visit,
                                                EndRound end_round) {
    for (int i = 0; i < count; i += 2) {
      if (i > 0 || !is_first_here) await_keys();
      const Tile one = issue(first, true);
      k_.next();
      const bool has_two = i + 1 < count;
      if (has_two) await_keys();
      const Tile two = issue(second, has_two);
      await_products<1>();
      release(first, one);
      visit(first, one, 0);
      await_products<0>();
      if (has_two) {
        release(second, two);
        k_.next();
        visit(second, two, 1);
      } else {
        is_ready(second);
      }
      end_round(i / 2, has_two);
    }
  }

  // Ends with the bounds set and the lists empty.
  __device__ __forceinline__ void look(Products& first, Products& second, int count) {
    float top[2][2];
    for_each_tile(
        first, second, count, true,
        [&](const Products& products, const Tile&, int which) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float a = products[2 * h], b = products[2 * h + 1];
#pragma unroll
            for (int j = 1; j < kScanKeys / 8; ++j) {
              a = fmaxf(a, products[4 * j + 2 * h]);
              b = fmaxf(b, products[4 * j + 2 * h + 1]);
            }
            top[which][h] = fmaxf(a, b);
          }
        },
        [&](int round, bool has_two) {
          if (!has_two) top[1][0] = top[1][1] = -INFINITY;
          lists_.store_look(round, top[0], top[1]);
        });
    lists_.begin_with_look((count + 1) / 2);
  }
  __device__ __forceinline__ void scan(Products& first, Products& second, int count,
                                       bool had_look) {
    for_each_tile(
        first, second, count, !had_look,
        [&](const Products& products, const Tile& tile, int) {
          const uint32_t key = uint32_t(tile.tile * kScanKeys + lane() % 4 * 2);
#pragma unroll
          for (int j = 0; j < kScanKeys / 8; ++j) {
            if (j % 8 == 0) lists_.make_room();
            lists_.template take<0>(products[4 * j], products[4 * j + 1], key + 8 * j);
            lists_.template take<1>(products[4 * j + 2], products[4 * j + 3], key + 8 * j);
          }
        },
        [](int, bool) {});
  }

  template <int kH>
  __device__ __forceinline__ void write(const ScanItem& item) {
    const bool is_inside = row() + 8 * kH < item.num_rows;
    const int64_t query = item.first_query + p_.view.stride * (row() + 8 * kH);
    const int64_t place = item.head_index * p_.sizes.q_len + (is_inside ? query : 0);
    const int32_t first_key = int32_t(item.first_key), stride = p_.view.stride;
    const int32_t count = lists_.template write<kH>(
        p_.candidates.entries + place * p_.candidates.capacity, p_.candidates.capacity, is_inside,
        [&](uint32_t index) { return first_key + stride * int32_t(index); });
    if (is_inside && lane() % 4 == 0) p_.candidates.count[place] = count;
  }

  const ScanParams& p_;
  ScanShared<C>& shared_;
  const int warp_;
  const uint32_t* const words_;  // this thread's, in the first bitmap
  PipelineState<C::stages> k_;
  uint32_t queries_[C::head_dim / 16][4];
  LaneLists<C, kPlain> lists_;
};

inline constexpr int kScanProducerWarps = 4;

template <class T, class C, bool kPlain>
__global__ void __launch_bounds__(32 * (kScanProducerWarps + kScanWarps), 1)
    entmax_scan(const __grid_constant__ ScanParams p, const __grid_constant__ RowMaps keys,
                const __grid_constant__ BoundRule<kPlain> rule) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<ScanShared<C>*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();

  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);  // makes it provably warp-uniform
  if (warp < kScanProducerWarps) {
    shrink_registers<24>();
    if (threadIdx.x == 0) ScanProducer<C>(p, keys, shared).load();
  } else {
    grow_registers<240>();
    ScanConsumer<T, C, kPlain>(p, rule, shared, warp - kScanProducerWarps).run();
    shared.waits.end();
  }
}

template <class T, class C, bool kPlain>
void launch_scan(const ScanParams& params, const RowMaps& keys, const BoundRule<false>& rule,
                 cudaStream_t stream) {
  constexpr int kBytes = sizeof(ScanShared<C>);
  static_assert(kBytes <= kEntmaxSharedBytes, "does not fit: fewer entries of lists");
  static device::OncePerGpu reserve;
  reserve([] {
    check_cuda(cudaFuncSetAttribute(entmax_scan<T, C, kPlain>,
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
               "reserving shared memory for sm90.entmax_forward");
  });
  const int ctas = params.view.work.shares.num_ctas;
  KEYHOLE_ASSERT(ctas > 0, "sm90.entmax_forward was given lists that nobody has dealt to CTAs");
  device::launch(
      "sm90.entmax_forward", entmax_scan<T, C, kPlain>,
      {unsigned(ctas), 32 * (kScanProducerWarps + kScanWarps), size_t{kBytes}}, stream, params,
      keys, {rule.unit, rule.power, rule.rest, rule.whole, rule.top_k, rule.inner, rule.outer});
}

template <DType kType, int kHeadDim>
void scan_part(const device::EntmaxParams& p, const TileView& view, cudaStream_t stream) {
  using T = device::Storage<kType>;
  using C = std::conditional_t<kHeadDim == 64, EntmaxScanDim64, EntmaxScanDim128>;
  KEYHOLE_ASSERT(view.tile == kScanTile, "sm90.entmax_forward was given tiles of ",
                 to_string(view.tile));
  const ScanParams params = {p.sizes, p.q, p.candidates, view};
  const RowMaps keys = key_maps(p.sizes, p.k, kType, view.stride, kScanKeys);
  const BoundRule<false> rule = bound_rule(p);
  is_plain(rule) ? launch_scan<T, C, true>(params, keys, rule, stream)
                 : launch_scan<T, C, false>(params, keys, rule, stream);
}

template <DType kType, int kHeadDim>
void run_entmax_forward(const ForwardArgs& args) {
  device::run_entmax_forward(args, BitmapLayout::mma,
                             {scan_part<kType, kHeadDim>, device::launch_solve_candidates});
}

}  // namespace keyhole::sm90
