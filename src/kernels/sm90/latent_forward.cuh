// src/kernels/sm90/latent_forward.cuh
// Attention over key lists in latent form, by wgmma. latent_forward_shared.cuh has the pipeline.
#pragma once

#include "base/int_math.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/storage.h"
#include "kernels/sm90/latent_forward_consumer.cuh"
#include "kernels/sm90/latent_forward_launch.h"
#include "kernels/sm90/latent_forward_producer.cuh"

namespace keyhole::sm90 {

template <class T>
__global__ void __launch_bounds__(kLatentThreads, 1)
    latent_forward(const __grid_constant__ device::GatherForwardParams p,
                   const __grid_constant__ LatentGrid grid) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<LatentShared*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();

  const LatentWork work = latent_work(p.sizes, grid, blockIdx.x);
  const device::KeyList list = latent_list(p, work);
  const int num_pairs = (list.count + 2 * kLatentKeys - 1) / (2 * kLatentKeys);
  const int warpgroup = warp_uniform(int(threadIdx.x / kWarpgroup));
  if (warpgroup == 2) {
    shrink_registers<kLatentProducerRegisters>();
    LatentProducer<T> producer(p, work, list, shared);
    producer.load_queries();
    producer.load_keys(num_pairs);
    meet<kEndOfPass, kLatentThreads>();
    if (*static_cast<volatile int32_t*>(&shared.is_over) != 0) {
      producer.load_keys(num_pairs);  // for the row maxima
      producer.load_keys(num_pairs);
    }
  } else {
    grow_registers<kLatentConsumerRegisters>();
    if (warpgroup == 0) {
      LatentConsumer<T, 0>(p, work, shared).run(num_pairs);
    } else {
      LatentConsumer<T, 1>(p, work, shared).run(num_pairs);
    }
    shared.waits.end();
  }
}

template <class T>
void launch_latent_forward(const device::GatherForwardParams& p, cudaStream_t stream) {
  constexpr int kBytes = int(kLatentSharedBytes);
  const device::Sizes& sizes = p.sizes;
  const LatentGrid grid = {
      int32_t(ceil_div(int64_t{sizes.heads / sizes.kv_heads}, int64_t{kLatentHeads}))};
  const int64_t ctas = checked_mul(
      checked_mul(int64_t{sizes.batch} * sizes.kv_heads, sizes.q_len, "attention: rows"),
      grid.head_blocks, "attention: CTAs");
  static device::OncePerGpu reserve;
  device::reserve_shared_memory(reserve, latent_forward<T>, kBytes, "sm90.forward in latent form");
  device::launch("sm90.forward in latent form", latent_forward<T>,
                 {unsigned(narrow(ctas, "attention: CTAs")), kLatentThreads, size_t{kBytes}},
                 stream, p, grid);
}

template <DType kType>
void run_latent_forward(const ForwardArgs& args) {
  device::run_forward_parts(args, nullptr, launch_latent_forward<device::Storage<kType>>);
}

}  // namespace keyhole::sm90
