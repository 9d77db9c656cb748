// src/kernels/sm90/latent_pair_forward.cuh
// Attention over key lists in latent form by clusters of two CTAs, by wgmma. latent_pair_shared.cuh
// has the pipeline.
#pragma once

#include "base/int_math.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/sm90/latent_pair_consumer.cuh"
#include "kernels/sm90/latent_pair_launch.h"
#include "kernels/sm90/latent_pair_producer.cuh"

namespace keyhole::sm90 {

// Each role finds its work itself: what all have found before would fill the few registers of the
// producers. Neither CTA waits at the end for the other one: each has received all that is sent to
// it once its warps have the weights of the last block.
template <class T>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(LatentPair::kThreads, 1)
    latent_pair_forward(const __grid_constant__ device::GatherForwardParams p,
                        const __grid_constant__ LatentPairGrid grid) {
  using L = LatentPair;
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<LatentPairShared*>(memory);
  if (threadIdx.x == 0) {
    shared.init(latent_pair_blocks(latent_list(p, latent_pair_work(p.sizes, grid))));
  }
  meet_cluster();

  const int warpgroup = warp_uniform(int(threadIdx.x / kWarpgroup));
  if (warpgroup == 2) {
    shrink_registers<L::kProducerRegisters>();
    const LatentWork work = latent_pair_work(p.sizes, grid);
    LatentPairProducer<T>(p, work, latent_list(p, work), shared).run();
  } else {
    grow_registers<L::kConsumerRegisters>();
    LatentPairConsumer<T>(grid, shared, warpgroup).run(p);
    shared.waits.end();
  }
}

template <class T>
void launch_latent_pair_forward(const device::GatherForwardParams& p, cudaStream_t stream) {
  constexpr int kBytes = int(kLatentPairSharedBytes);
  constexpr uint32_t kOne = std::is_same_v<T, __nv_bfloat16> ? 0x3f803f80u : 0x3c003c00u;
  const device::Sizes& sizes = p.sizes;
  const int64_t heads = sizes.heads / sizes.kv_heads;
  const LatentPairGrid grid = {
      {int32_t(ceil_div(heads, int64_t{LatentPair::kHeads}))}, sizes.scale * device::kLog2E, kOne};
  const int64_t ctas = checked_mul(
      checked_mul(int64_t{sizes.batch} * sizes.kv_heads, sizes.q_len, "attention: rows"),
      2 * grid.heads.head_blocks, "attention: CTAs");
  static device::OncePerGpu reserve;
  device::reserve_shared_memory(reserve, latent_pair_forward<T>, kBytes,
                                "sm90.forward in latent form, by pairs");
  device::launch(
      "sm90.forward in latent form, by pairs", latent_pair_forward<T>,
      {unsigned(narrow(ctas, "attention: CTAs")), unsigned(LatentPair::kThreads), size_t{kBytes}},
      stream, p, grid);
}

}  // namespace keyhole::sm90
