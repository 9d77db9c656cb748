// src/kernels/sm90/latent_backward.cuh
// The backward pass over key lists in latent form, by wgmma. latent_backward_shared.cuh has the
// pipeline.
#pragma once

#include "base/int_math.h"
#include "kernels/device/backward_call.h"
#include "kernels/device/key_list.cuh"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/storage.h"
#include "kernels/sm90/latent_backward_keys.cuh"
#include "kernels/sm90/latent_backward_launch.h"
#include "kernels/sm90/latent_backward_producer.cuh"
#include "kernels/sm90/latent_backward_rows.cuh"

namespace keyhole::sm90 {

struct LatentBackwardGrid {
  int32_t head_blocks;  // of a kv head
};

// All of it fits 32 bits, because the number of CTAs does.
__device__ __forceinline__ LatentBackwardWork latent_backward_work(const device::Sizes& sizes,
                                                                   const LatentBackwardGrid& grid) {
  const uint32_t heads = uint32_t(sizes.heads / sizes.kv_heads);  // of a kv head
  const uint32_t cluster = blockIdx.x / 2, row = cluster / uint32_t(grid.head_blocks);
  const uint32_t first = (cluster - row * uint32_t(grid.head_blocks)) * LatentBackward::kHeads;
  const uint32_t unit = row / uint32_t(sizes.q_len), batch = unit / uint32_t(sizes.kv_heads);
  const uint32_t kv_head = unit - batch * uint32_t(sizes.kv_heads);
  return {int32_t(batch),
          int32_t(kv_head),
          int32_t(kv_head * heads + first),
          int32_t(min(uint32_t(LatentBackward::kHeads), heads - first)),
          int64_t{row - unit * uint32_t(sizes.q_len)},
          cluster_rank()};
}
__device__ __forceinline__ device::KeyList latent_backward_list(const device::Sizes& sizes,
                                                                const GatherView& view,
                                                                const LatentBackwardWork& work) {
  const int32_t group = view.group_of_head(work.batch * sizes.heads + work.first_head);
  return device::key_list(view, group, uint32_t(work.query) / uint32_t(view.rows_per_list));
}
__device__ __forceinline__ int num_blocks_of(const device::KeyList& list) {
  return (list.count + LatentBackward::kKeys - 1) / LatentBackward::kKeys;
}

// Each role finds its work and list itself: what all have found before would fill the few registers
// of the producers.
template <class T>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(LatentBackward::kThreads, 1)
    latent_backward(const __grid_constant__ device::BackwardParams p,
                    const __grid_constant__ GatherView view,
                    const __grid_constant__ LatentBackwardGrid grid) {
  using L = LatentBackward;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<LatentBackwardShared*>(memory);
  if (threadIdx.x == 0) shared.init(latent_backward_work(p.sizes, grid).row_groups());
  meet_cluster();

  const int warpgroup = warp_uniform(int(threadIdx.x / kWarpgroup));
  if (warpgroup == 3) {
    shrink_registers<L::kProducerRegisters>();
    const LatentBackwardWork work = latent_backward_work(p.sizes, grid);
    const device::KeyList list = latent_backward_list(p.sizes, view, work);
    LatentBackwardProducer<T> producer(p, work, list, shared);
    producer.load_queries();
    producer.load_keys(num_blocks_of(list));
    device::await_copies<0>();
  } else if (warpgroup == 2) {
    shrink_registers<L::kKeyRegisters>();
    const LatentBackwardWork work = latent_backward_work(p.sizes, grid);
    LatentBackwardKeys<T>(p, work, shared)
        .run(num_blocks_of(latent_backward_list(p.sizes, view, work)));
  } else {
    grow_registers<L::kRowRegisters>();
    const LatentBackwardWork work = latent_backward_work(p.sizes, grid);
    const int num_blocks = num_blocks_of(latent_backward_list(p.sizes, view, work));
    if (warpgroup == 0) {
      LatentBackwardRows<T, 0>(p, work, shared).run(num_blocks);
    } else if (work.row_groups() == 2) {
      LatentBackwardRows<T, 1>(p, work, shared).run(num_blocks);
    }
    shared.waits.end();
  }
  meet_cluster();  // the other CTA has stored all that it stores here
}

template <class T>
void launch_latent_backward(const device::BackwardParams& p, const GatherView& view,
                            cudaStream_t stream) {
  constexpr int kBytes = int(kLatentBackwardSharedBytes);
  const device::Sizes& sizes = p.sizes;
  const LatentBackwardGrid grid = {
      int32_t(ceil_div(int64_t{sizes.heads / sizes.kv_heads}, int64_t{LatentBackward::kHeads}))};
  const int64_t ctas = checked_mul(
      checked_mul(int64_t{sizes.batch} * sizes.kv_heads, sizes.q_len, "attention: rows"),
      2 * grid.head_blocks, "attention: CTAs");
  if (ctas == 0) return;
  static device::OncePerGpu reserve;
  device::reserve_shared_memory(reserve, latent_backward<T>, kBytes,
                                "sm90.backward in latent form");
  device::launch("sm90.backward in latent form", latent_backward<T>,
                 {unsigned(narrow(ctas, "attention: CTAs")), unsigned(LatentBackward::kThreads),
                  size_t{kBytes}},
                 stream, p, view, grid);
}

template <DType kType>
void run_latent_backward(const BackwardArgs& args) {
  device::run_backward_parts(args, {.gather = launch_latent_backward<device::Storage<kType>>});
}

}  // namespace keyhole::sm90
