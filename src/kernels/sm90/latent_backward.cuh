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

__device__ inline LatentBackwardWork latent_backward_work(const device::Sizes& sizes,
                                                          const LatentBackwardGrid& grid) {
  const int32_t heads = sizes.heads / sizes.kv_heads;  // of a kv head
  const uint32_t cluster = blockIdx.x / 2;
  const int32_t block = int32_t(cluster % uint32_t(grid.head_blocks));
  const int64_t row = cluster / uint32_t(grid.head_blocks);
  const int64_t unit = row / sizes.q_len;
  const int32_t kv_head = int32_t(unit % sizes.kv_heads), first = block * LatentBackward::kHeads;
  return {int32_t(unit / sizes.kv_heads), kv_head,
          kv_head * heads + first,        min(LatentBackward::kHeads, heads - first),
          row - unit * sizes.q_len,       cluster_rank()};
}

template <class T>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(LatentBackward::kThreads, 1)
    latent_backward(const __grid_constant__ device::BackwardParams p,
                    const __grid_constant__ GatherView view,
                    const __grid_constant__ LatentBackwardGrid grid) {
  using L = LatentBackward;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<LatentBackwardShared*>(memory);
  const LatentBackwardWork work = latent_backward_work(p.sizes, grid);
  if (threadIdx.x == 0) shared.init(work.row_groups());
  meet_cluster();

  const int32_t group = view.group_of_head(work.batch * p.sizes.heads + work.first_head);
  const device::KeyList list = device::key_list(view, group, work.query / view.rows_per_list);
  const int num_blocks = (list.count + L::kKeys - 1) / L::kKeys;
  const int warpgroup = warp_uniform(int(threadIdx.x / kWarpgroup));
  if (warpgroup == 3) {
    shrink_registers<L::kProducerRegisters>();
    LatentBackwardProducer<T> producer(p, work, list, shared);
    producer.load_queries();
    producer.load_keys(num_blocks);
    device::await_copies<0>();
  } else if (warpgroup == 2) {
    shrink_registers<L::kKeyRegisters>();
    LatentBackwardKeys<T>(p, work, shared).run(num_blocks);
  } else {
    grow_registers<L::kRowRegisters>();
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
