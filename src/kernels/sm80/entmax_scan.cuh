// src/kernels/sm80/entmax_scan.cuh
// The scan of entmax and top_k: q . k' over the tile lists of a plan, on tensor cores by mma.sync,
// and of each row the candidates: the keys that may have weight. entmax_scan_shared.cuh has the
// pipeline, mma/entmax_lane_lists.cuh the lists.
//
// A query tile is processed in two passes over its key tiles:
//   look    of each row the maximum of each lane's columns in a tile. They give a bound.
//   scan    products above the bound go to lists; a list that fills up is cleaned.
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
#include "kernels/mma/gather_products.cuh"
#include "kernels/mma/tile_mask.cuh"
#include "kernels/sm80/config.h"
#include "kernels/sm80/entmax_launch.h"
#include "kernels/sm80/entmax_scan_producer.cuh"

namespace keyhole::sm80 {

// The place of a consumer in the ring of stages, as a PipelineState, and inside its tile: in one
// register.
template <class C>
class StepState {
 public:
  static constexpr uint32_t kSteps = C::tile_k / kScanStepKeys;  // of a tile
  __device__ __forceinline__ uint32_t stage() const {
    return at_ / kSteps - parity() * uint32_t{C::stages};
  }
  __device__ __forceinline__ uint32_t parity() const { return at_ >= kRing ? 1 : 0; }
  // The first key of the step in its tile.
  __device__ __forceinline__ uint32_t first() const { return at_ % kSteps * kScanStepKeys; }
  __device__ __forceinline__ bool begins() const { return at_ % kSteps == 0; }
  __device__ __forceinline__ bool ends() const { return at_ % kSteps == kSteps - 1; }
  __device__ __forceinline__ void next() { at_ = at_ + 1 < 2 * kRing ? at_ + 1 : 0; }

 private:
  static constexpr uint32_t kRing = kSteps * C::stages;
  uint32_t at_ = 0;  // twice around the ring: once for each parity
};

template <class T, class C, bool kPlain, bool kIsRounded>
class ScanConsumer {
 public:
  __device__ ScanConsumer(const ScanParams& p, const mma::ScanRule<kPlain, kIsRounded>& rule,
                          ScanShared<C>& shared)
      : p_(p), shared_(shared), lists_(rule, device::smem_address(shared.lists[warp()])) {}

  __device__ __forceinline__ void run() {
    for (int32_t at = int32_t(blockIdx.x); at != kLastItem; at = item().next) {
      follow(p_.view.work.shares.items[at]);
    }
  }

 private:
  using Lists = mma::LaneLists<C::list_slots, kPlain, kIsRounded>;
  using Queries = mma::RowFragments<C>;
  using Products = float[C::blocks][kScanStepKeys / 8][4];
  static_assert(kScanStepKeys / 8 == Lists::kStep, "is_any_full() answers for one step");

  // Reloaded at each use: there are no registers for what would be computed from them in advance.
  static __device__ __forceinline__ uint32_t lane() { return device::thread_index() % 32; }
  static __device__ __forceinline__ uint32_t warp() { return device::thread_index() / 32; }

  __device__ __forceinline__ void follow(const ShareItem& share) {
    const Queries queries = load_queries(share);
    const int num_tiles = device::warp_uniform(item().num_tiles);
    constexpr int kSteps = StepState<C>::kSteps;  // of a tile
    for (int i = 0; i < num_tiles; ++i) {
      float top[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
      for (int step = 0; step < kSteps; ++step) {
        follow_step(queries, [&](const Products& products, uint32_t) { look(products, top); });
      }
      lists_.store_look(i, top);
    }
    lists_.load_margins([&](int h) { return has_row(h) ? row_of(h) : -1; });
    lists_.begin(num_tiles);
    if (!has_row(0)) lists_.close(0);
    if (!has_row(1)) lists_.close(1);
#pragma unroll 1
    for (int steps_left = kSteps * num_tiles; steps_left > 0; --steps_left) {
      follow_step(queries,
                  [&](const Products& products, uint32_t place) { take(products, place); });
      if (lists_.is_any_full()) move(steps_left / kSteps);
    }
    move(0);
    store();
  }

  // Stores what is needed later of the item. The queries come by way of the lists, which are empty.
  __device__ __forceinline__ Queries load_queries(const ShareItem& share) const {
    const device::Work work = device::work_of(p_.sizes, p_.view, share.work, share.work.head);
    const int64_t first = int64_t{work.row_tile} * kScanRows + warp() * 16;
    __syncwarp();  // the item before and its lists have been read
    if (lane() == 0) {
      const int64_t query = work.residue.first_q + p_.view.stride * first;
      const int64_t count = min(max(work.residue.num_q - first, int64_t{0}), int64_t{16});
      item() = {work.head_index * p_.sizes.q_len + query, int32_t(count),
                int32_t(work.residue.first_k), work.num_tiles, share.next};
    }
    const uint32_t smem = device::smem_address(shared_.lists[warp()]);
    const mma::GatheredTensor from =
        class_rows<T>(p_.q, work.batch, work.head, work.residue.first_q, p_);
    mma::copy_gathered<C::head_dim>(smem, from, named_row(first, work.residue.num_q));
    mma::commit_copies();
    mma::await_copies<0>();
    __syncwarp();
    const Queries queries(smem);
    __syncwarp();
    return queries;
  }

  // Waits for the next keys and calls visit(products, place). place: of the first key of this lane
  // in the residue class. Nothing of a tile is kept for its next step, where moving entries would
  // lack the registers.
  template <class Visit>
  __device__ __forceinline__ void follow_step(const Queries& queries, Visit visit) {
    const uint32_t stage = at_.stage(), first = at_.first();
    if (at_.begins()) shared_.waits.await(shared_.full[stage], at_.parity());
    const int32_t bitmap = shared_.bitmap[stage];
    const uint32_t place = shared_.tile[stage] * C::tile_k + first + lane() % 4 * 2;
    mma::TileMask<kScanRows, C::tile_k> mask;
    mask.load(p_.view, bitmap, int(device::thread_index()));
    Products products;
    mma::multiply_by_keys<T, C>(products, queries,
                                device::smem_address(shared_.k[stage]) + first * C::row_bytes);
    if (at_.ends()) {
      __syncwarp();
      if (lane() == 0) mma::arrive(shared_.empty[stage]);
    }
    at_.next();
    mask.bits[0] >>= first / 2;  // a lane has two bits of each of its rows for eight keys
    if (bitmap != kFull) mask.apply(reinterpret_cast<float(&)[kScanStepKeys / 2]>(products));
    visit(products, place);
  }
  static_assert(C::tile_k == 64, "a lane has one word of a mask");

  static __device__ __forceinline__ void look(const Products& products, float (&top)[2]) {
#pragma unroll
    for (int n = 0; n < kScanStepKeys / 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        top[h] = fmaxf(top[h], fmaxf(products[0][n][2 * h], products[0][n][2 * h + 1]));
      }
    }
  }
  __device__ __forceinline__ void take(const Products& products, uint32_t place) {
#pragma unroll
    for (int n = 0; n < kScanStepKeys / 8; ++n) {
      const float(&four)[4] = products[0][n];
      lists_.take(four[0], four[1], four[2], four[3], place, uint32_t(8 * n));
    }
  }
  __device__ __forceinline__ WarpItem& item() const { return shared_.items[warp()]; }
  // Of this lane's two rows, the second one is 8 further than the first.
  static __device__ __forceinline__ int row_in_warp(int h) { return int(lane()) / 4 + 8 * h; }
  __device__ __forceinline__ bool has_row(int h) const { return row_in_warp(h) < item().num_rows; }
  __device__ __forceinline__ int64_t row_of(int h) const {
    return item().first_row + p_.view.stride * row_in_warp(h);
  }
  __device__ __forceinline__ void move(int tiles_left) {
    const device::CandidateLists& all = p_.candidates;
    mma::CandidateRow to[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      to[h] = {all.entries + row_of(h) * all.capacity, all.capacity, item().first_key,
               p_.view.stride};
    }
    lists_.move(to, /*is_early=*/2 * tiles_left > item().num_tiles);
  }
  __device__ __forceinline__ void store() const {
    if (lane() % 4 != 0) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (!has_row(h)) continue;
      p_.candidates.count[row_of(h)] = lists_.num_candidates(h);
      p_.candidates.lambda_bound[row_of(h)] = lists_.lambda_bound(h);
    }
  }

  const ScanParams& p_;
  ScanShared<C>& shared_;
  StepState<C> at_;
  Lists lists_;
};

template <class T, class C, bool kPlain, bool kIsRounded>
__global__ void __launch_bounds__(kScanThreads, kScanCtasPerSm)
    entmax_scan(const __grid_constant__ ScanParams p,
                const __grid_constant__ mma::ScanRule<kPlain, kIsRounded> rule) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<ScanShared<C>*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();

  if (device::warp_uniform(int(threadIdx.x / 32)) == kScanWarps) {
    ScanProducer<T, C>(p, shared).load();
  } else {
    ScanConsumer<T, C, kPlain, kIsRounded>(p, rule, shared).run();
    shared.waits.end();
  }
}

template <class T, class C, bool kPlain, bool kIsRounded>
void launch_scan(const ScanParams& params, const mma::ScanRule<kPlain, kIsRounded>& rule,
                 cudaStream_t stream) {
  constexpr auto kKernel = entmax_scan<T, C, kPlain, kIsRounded>;
  constexpr int kBytes = sizeof(ScanShared<C>);
  static device::OncePerGpu reserve, prefer;
  device::reserve_shared_memory(reserve, kKernel, kBytes, "sm80.entmax_forward");
  prefer([] {
    // Otherwise the driver may leave too little of it for a second CTA.
    check_cuda(cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared),
               "preferring shared memory for sm80.entmax_forward");
  });
  const int ctas = params.view.work.shares.num_ctas;
  KEYHOLE_ASSERT(ctas > 0, "sm80.entmax_forward was given lists without work items for CTAs");
  device::launch("sm80.entmax_forward", kKernel, {unsigned(ctas), kScanThreads, size_t{kBytes}},
                 stream, params, rule);
}

template <class T, class C, bool kIsRounded>
void scan_part(const device::EntmaxParams& p, const device::RoundedRows& rounded,
               const TileView& view, cudaStream_t stream) {
  KEYHOLE_ASSERT(view.tile == scan_tile<C>(), "sm80.entmax_forward was given tiles of ",
                 to_string(view.tile));
  const ScanParams params = {p.sizes, kIsRounded ? rounded.q : p.q, kIsRounded ? rounded.k : p.k,
                             p.candidates, view};
  const mma::BoundRule<false> rule = mma::bound_rule(p);
  const auto launch = [&]<bool kPlain>() {
    launch_scan<T, C, kPlain, kIsRounded>(params, mma::scan_rule<kPlain, kIsRounded>(rule, rounded),
                                          stream);
  };
  is_plain(rule) ? launch.template operator()<true>() : launch.template operator()<false>();
}

// The configuration for a given amount of shared memory.
template <DType kType, int kHeadDim>
device::LaunchScan scan_for(int64_t shared_bytes) {
  constexpr bool kIsRounded = kType == DType::f32;
  using T = device::Storage<kIsRounded ? DType::bf16 : kType>;
  using Least = std::conditional_t<kHeadDim == 64, EntmaxScanDim64, EntmaxScanDim128>;
  using Most =
      std::conditional_t<kHeadDim == 64, EntmaxScanDim64For227KiB, EntmaxScanDim128For227KiB>;
  // CUDA takes 1 KiB for each CTA. What an SM has is what one CTA may have and that KiB.
  constexpr int64_t kOfCuda = 1024;
  static_assert(kScanCtasPerSm * (sizeof(ScanShared<Least>) + kOfCuda) <= kShared163KiB + kOfCuda);
  static_assert(kScanCtasPerSm * (sizeof(ScanShared<Most>) + kOfCuda) <= kShared227KiB + kOfCuda);
  static_assert(sizeof(ScanShared<Least>) <= kShared99KiB);
  return shared_bytes >= kShared227KiB ? scan_part<T, Most, kIsRounded>
                                       : scan_part<T, Least, kIsRounded>;
}

template <DType kType, int kHeadDim>
void run_entmax_forward(const ForwardArgs& args) {
  device::run_entmax_forward(args, BitmapLayout::mma,
                             {.round = kType == DType::f32 ? mma::launch_round_rows : nullptr,
                              .scan = scan_for<kType, kHeadDim>(args.launch.shared_bytes),
                              .solve = mma::launch_solve_candidates});
}

}  // namespace keyhole::sm80
