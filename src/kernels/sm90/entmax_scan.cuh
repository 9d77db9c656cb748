// src/kernels/sm90/entmax_scan.cuh
// The scan of entmax and top_k: q . k' over the tile lists of a plan, on tensor cores by wgmma, and
// of each row the candidates: the keys that may have weight. entmax_scan_shared.cuh has the
// pipeline, mma/entmax_lane_lists.cuh the lists.
//
// A query tile is processed in two passes over its key tiles:
//   look    of each row the maximum of each lane's columns in a tile. They give a bound.
//   scan    products above the bound go to lists; a list that fills up is cleaned.
// If the look shows that many of its rows have more keys of weight than fit, the query tile is
// given up, and entmax_tiles.cuh takes it.
//
// fp32 is scanned in bf16: rows were rounded before (mma/entmax_round.h), and bounds are lower by
// what that may change. kIsRounded says so.
#pragma once

#include <type_traits>

#include "base/check.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/storage.h"
#include "kernels/mma/entmax_round.h"
#include "kernels/mma/entmax_solve.h"
#include "kernels/mma/tile_mask.cuh"
#include "kernels/sm90/entmax_launch.h"
#include "kernels/sm90/entmax_scan_producer.cuh"
#include "kernels/sm90/entmax_tiles.cuh"

namespace keyhole::sm90 {

using mma::bound_rule;
using mma::BoundRule;
using mma::CandidateRow;
using mma::LaneLists;
using mma::ScanRule;

template <class T, class C, bool kPlain, bool kIsRounded>
class ScanConsumer {
 public:
  __device__ ScanConsumer(const ScanParams& p, const ScanRule<kPlain, kIsRounded>& rule,
                          ScanShared<C>& shared)
      : p_(p), shared_(shared), lists_(rule, smem_address(shared.lists[warp()])) {}

  __device__ __forceinline__ void run() {
    Products products;
    for (uint32_t num_items = 0;; ++num_items) {
      await_keys();
      ScanItem& item = shared_.items[num_items % (C::stages + 1)];
      const int num_tiles = warp_uniform(item.num_tiles), num_looks = warp_uniform(item.num_looks);
      if (num_tiles == 0) return;
      load_queries(item);
      int32_t tile;
      for (int i = 0; i < num_looks; ++i) {
        next_products(products, tile);
        look(products, i);
      }
      begin(item, num_looks);
      int tiles_left = num_tiles;
      for (; tiles_left > 0 && next_products(products, tile); --tiles_left) {
        const bool is_early = 2 * tiles_left > num_tiles;
        take(products, tile, item, is_early);
        if (is_any_crowded() && tiles_left > 1) move(item, is_early);
        tell_if_crowded(tiles_left > 1 && lists_.is_nearly_full());
      }
      end(item, tiles_left > 0);
    }
  }

 private:
  using Products = float[C::tile_k / 2];
  using Keys = typename ScanShared<C>::Keys;
  using Lists = LaneLists<ScanShared<C>::list_slots, kPlain, kIsRounded>;

  // Among the consumers. Cheaper to compute again than to keep.
  static __device__ __forceinline__ int thread() {
    return int(threadIdx.x) - 32 * kScanProducerWarps;
  }
  static __device__ __forceinline__ int lane() { return int(threadIdx.x) % 32; }
  static __device__ __forceinline__ int warp() { return thread() / 32; }
  // The first of this lane's two rows in the query tile; the other one is 8 further.
  __device__ __forceinline__ int row() const { return warp() * 16 + lane() / 4; }

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

  // Waits for the next key tile and multiplies it. False: the query tile is given up.
  __device__ __forceinline__ bool next_products(Products& products, int32_t& tile) {
    await_keys();
    const int32_t bitmap = warp_uniform(shared_.bitmap[k_.stage]);
    tile = shared_.tile[k_.stage];
    mma::TileMask<kScanRows, C::tile_k> mask;
    mask.load(p_.view, bitmap, thread());
    const uint64_t keys = operand(smem_address(shared_.k[k_.stage]), Keys::bytes);
    begin_products();
    Product<T>::template of_register_rows<true>(products, queries_[0], keys);
#pragma unroll
    for (int d = 1; d < C::head_dim / 16; ++d) {
      Product<T>::template of_register_rows<false>(products, queries_[d],
                                                   further(keys, d / 4 * Keys::bytes + d % 4 * 32));
    }
    commit_products();
    await_products<0>();
    is_ready(products);
    arrive_as_warp(shared_.empty[k_.stage]);
    k_.next();
    if (bitmap != kFull) mask.apply(products);
    return bitmap != kGivenUp;
  }

  __device__ __forceinline__ void look(const Products& products, int number) {
    float top[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float a = products[2 * h], b = products[2 * h + 1];
#pragma unroll
      for (int j = 1; j < C::tile_k / 8; ++j) {
        a = fmaxf(a, products[4 * j + 2 * h]);
        b = fmaxf(b, products[4 * j + 2 * h + 1]);
      }
      top[h] = fmaxf(a, b);
    }
    lists_.store_look(number, top);
  }

  // The number of a barrier.
  static constexpr int kAllConsumers = 1;

  // Warps wait for each other: those of a warpgroup at every product, all of them at the stages of
  // the pipeline. So they move their entries at the same time: one tile after a lane of any warp
  // had little room. After which tile depends on the rows alone, not on who is ahead.
  __device__ __forceinline__ void tell_if_crowded(bool is_true) {
    if (is_true) *static_cast<volatile uint32_t*>(&shared_.crowded[num_told_ % 2]) = num_told_;
    __syncwarp();
    arrive_as_warp(shared_.told[num_told_ % 2]);
    ++num_told_;
  }
  // Of the tile before.
  __device__ __forceinline__ bool is_any_crowded() {
    if (num_told_ == 0) return false;
    const uint32_t before = num_told_ - 1;
    shared_.waits.await(shared_.told[before % 2], before / 2 % 2);
    return *static_cast<volatile uint32_t*>(&shared_.crowded[before % 2]) == before;
  }

  // Some of the products go to the lists. Where a lane has no room for more, all entries are moved:
  // at one place in the code, which is long and seldom runs.
  __device__ __forceinline__ void take(const Products& products, int32_t tile, const ScanItem& item,
                                       bool is_early) {
    int group = 0;
    do {
      if (group > 0) move(item, is_early);
      group = take_from(group, products, uint32_t(tile * C::tile_k + lane() % 4 * 2));
    } while (group > 0);
  }
  // From a group of products on. Returns the one to go on with when there is room, or 0.
  __device__ __forceinline__ int take_from(int from, const Products& products, uint32_t place) {
#pragma unroll
    for (int group = 0; group < C::tile_k / 8 / Lists::kStep; ++group) {
      if (group < from) continue;
#pragma unroll
      for (int j = group * Lists::kStep; j < (group + 1) * Lists::kStep; ++j) {
        lists_.take(products[4 * j], products[4 * j + 1], products[4 * j + 2], products[4 * j + 3],
                    place, uint32_t(8 * j));
      }
      if (lists_.is_any_full()) return group + 1;
    }
    return 0;
  }
  __device__ __forceinline__ int64_t row_of(const ScanItem& item, int h) const {
    const int64_t query = item.first_query + p_.view.stride * (row() + 8 * h);
    return item.head_index * p_.sizes.q_len + query;
  }
  __device__ __forceinline__ void move(const ScanItem& item, bool is_early) {
    const device::CandidateLists& all = p_.candidates;
    CandidateRow to[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      to[h] = {all.entries + row_of(item, h) * all.capacity, all.capacity, int32_t(item.first_key),
               p_.view.stride};
    }
    lists_.move(to, is_early);
  }
  __device__ __forceinline__ void begin(ScanItem& item, int num_looks) {
    lists_.load_margins(
        [&](int h) { return row() + 8 * h < item.num_rows ? row_of(item, h) : -1; });
    lists_.begin(num_looks);
    if (can_give_up()) lists_.close_long_rows(num_looks);
    if (row() >= item.num_rows) lists_.close(0);
    if (row() + 8 >= item.num_rows) lists_.close(1);
    const int closed = num_closed_rows(item);
    if (closed != 0 && lane() == 0) atomicAdd(&item.num_left, closed);
  }
  __device__ __forceinline__ bool can_give_up() const { return p_.most_left < kScanRows; }
  // Of this warp's rows. Warp-uniform.
  __device__ __forceinline__ int num_closed_rows(const ScanItem& item) const {
    int closed = 0;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool is_there = lane() % 4 == 0 && row() + 8 * h < item.num_rows;
      closed += __popc(__ballot_sync(~0u, is_there && lists_.is_closed(h)));
    }
    return closed;
  }
  // Whether the producer saw in time that a query tile is to be given up must not matter: if it did
  // not, the consumers do. They are at most as many key tiles apart as there are stages.
  __device__ __forceinline__ void end(const ScanItem& item, bool is_given_up) {
    if (!is_given_up) move(item, false);
    if (!is_given_up && can_give_up()) {
      if (item.num_tiles <= C::stages) meet<kAllConsumers, 32 * kScanWarps>();
      is_given_up = *static_cast<const volatile int32_t*>(&item.num_left) >= p_.most_left;
    }
    if (is_given_up) {
      lists_.close(0);
      lists_.close(1);
    }
    const int num_left = num_closed_rows(item);
    if (num_left != 0 && lane() == 0) atomicAdd(p_.candidates.num_left, num_left);
    if (lane() % 4 != 0) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (row() + 8 * h >= item.num_rows) continue;
      p_.candidates.count[row_of(item, h)] = lists_.num_candidates(h);
      p_.candidates.lambda_bound[row_of(item, h)] = lists_.lambda_bound(h);
    }
  }

  const ScanParams& p_;
  ScanShared<C>& shared_;
  PipelineState<C::stages> k_;
  uint32_t num_told_ = 0;  // tiles that tell_if_crowded() was called for
  uint32_t queries_[C::head_dim / 16][4];
  Lists lists_;
};

template <class T, class C, bool kPlain, bool kIsRounded>
__global__ void __launch_bounds__(kScanThreads, 1)
    entmax_scan(const __grid_constant__ ScanParams p, const __grid_constant__ RowMaps keys,
                const __grid_constant__ ScanRule<kPlain, kIsRounded> rule) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<ScanShared<C>*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();

  const int warp = warp_uniform(int(threadIdx.x / 32));
  if (warp < kScanProducerWarps) {
    shrink_registers<kScanProducerRegisters>();
    if (threadIdx.x == 0) ScanProducer<C>(p, keys, shared).load();
  } else {
    grow_registers<kScanConsumerRegisters>();
    ScanConsumer<T, C, kPlain, kIsRounded>(p, rule, shared).run();
    shared.waits.end();
  }
}

template <class T, class C, bool kPlain, bool kIsRounded>
void launch_scan(const ScanParams& params, const RowMaps& keys,
                 const ScanRule<kPlain, kIsRounded>& rule, cudaStream_t stream) {
  constexpr auto kKernel = entmax_scan<T, C, kPlain, kIsRounded>;
  constexpr int kBytes = sizeof(ScanShared<C>);
  static_assert(kBytes <= kEntmaxSharedBytes, "does not fit: fewer slots");
  static device::OncePerGpu reserve;
  device::reserve_shared_memory(reserve, kKernel, kBytes, "sm90.entmax_forward");
  const int ctas = params.view.work.shares.num_ctas;
  KEYHOLE_ASSERT(ctas > 0, "sm90.entmax_forward was given lists without work items for CTAs");
  device::launch("sm90.entmax_forward", kKernel, {unsigned(ctas), kScanThreads, size_t{kBytes}},
                 stream, params, keys, rule);
}

template <int kHeadDim>
using ScanConfig = std::conditional_t<kHeadDim == 64, EntmaxScanDim64, EntmaxScanDim128>;

template <DType kType, int kHeadDim>
void scan_part(const device::EntmaxParams& p, const device::RoundedRows& rounded,
               const TileView& view, cudaStream_t stream) {
  constexpr bool kIsRounded = kType == DType::f32;
  constexpr DType kScanned = kIsRounded ? DType::bf16 : kType;
  using T = device::Storage<kScanned>;
  using C = ScanConfig<kHeadDim>;
  KEYHOLE_ASSERT(view.tile == scan_tile<C>(), "sm90.entmax_forward was given tiles of ",
                 to_string(view.tile));
  const bool can_give_up = !kIsRounded && can_follow_tiles(p);
  const ScanParams params = {p.sizes, kIsRounded ? rounded.q : p.q, p.candidates, view,
                             can_give_up ? kMostRowsLeft : INT32_MAX};
  const RowMaps keys =
      key_maps(p.sizes, kIsRounded ? rounded.k : p.k, kScanned, view.stride, C::tile_k);
  const BoundRule<false> rule = bound_rule(p);
  const auto launch = [&]<bool kPlain>() {
    launch_scan<T, C, kPlain, kIsRounded>(
        params, keys, mma::scan_rule<kPlain, kIsRounded>(rule, rounded), stream);
  };
  is_plain(rule) ? launch.template operator()<true>() : launch.template operator()<false>();
}

template <DType kType, int kHeadDim>
void follow_tiles(const device::EntmaxParams& p, const TileView& view, bool has_scan,
                  cudaStream_t stream) {
  if (!can_follow_tiles(p)) return;
  launch_tiles<device::Storage<kType>, ScanConfig<kHeadDim>>(p, view, has_scan, kType, stream);
}

template <DType kType, int kHeadDim>
void run_entmax_forward(const ForwardArgs& args) {
  device::EntmaxLaunches launches = {.scan = scan_part<kType, kHeadDim>,
                                     .solve = mma::launch_solve_candidates};
  if constexpr (kType == DType::f32) {
    launches.round = mma::launch_round_rows;
  } else {
    launches.tiles = follow_tiles<kType, kHeadDim>;
    launches.prefers_tiles = prefers_tiles;
  }
  device::run_entmax_forward(args, BitmapLayout::mma, launches);
}

}  // namespace keyhole::sm90
