// course/03_flash_fast/step6_warp_roles_gpu.cu [LENGTH]
// Needs sm_90a.
// Step 6: warps with roles. A producer loads tiles into rings, two consumer warpgroups compute, and
// barriers in shared memory say what is full and what is empty. No barrier of all threads holds the
// consumers in step any more: while one computes exponentials, the other may multiply.
#include "rings.h"
#include "softmax.h"

namespace {

using namespace course;

__device__ __forceinline__ void consume(Rings& rings, bf16* to, int warp, int tiles) {
  const std::uint64_t queries = operand(smem_address(rings.q) + warp / 4 * 64 * 128);
  Place<kKeyStages> k;
  Place<kValueStages> v;
  Scores scores = {}, out = {};
  Rows rows;
  rings.waits.await(rings.q_full, 0);
  for (int tile = 0; tile < tiles; ++tile) {
    rings.waits.await(rings.k_full[k.stage], k.parity);
    begin_products();
    multiply_keys(scores, queries, operand(smem_address(rings.k[k.stage])));
    await_products<0>();
    is_ready(scores);
    arrive_as_warp(rings.k_empty[k.stage]);  // the producer may overwrite these keys
    k.next();

    Weights weights;
    float rescale[2];
    online_softmax(weights, scores, rows, rescale);
    multiply(out, rescale);

    rings.waits.await(rings.v_full[v.stage], v.parity);
    begin_products();
    multiply_values(out, weights, operand(smem_address(rings.v[v.stage])));
    await_products<0>();
    is_ready(out);
    arrive_as_warp(rings.v_empty[v.stage]);
    v.next();
  }
  store_rows(to + std::size_t(16 * warp) * kHeadDim, out, rows);
}

__global__ void __launch_bounds__(kThreads, 1)
    attend(const __grid_constant__ Maps maps, bf16* out, int tiles) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Rings& rings = *reinterpret_cast<Rings*>(memory);
  if (threadIdx.x == 0) rings.init();
  __syncthreads();

  const int first_query = int(blockIdx.x) * kTile, head = int(blockIdx.y);
  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
  if (warp < 4) {
    shrink_registers<kProducerRegisters>();
    if (threadIdx.x == 0) produce(rings, maps, first_query, head, tiles);
  } else {
    grow_registers<kConsumerRegisters>();
    const std::size_t row = std::size_t(head) * tiles * kTile + first_query;
    consume(rings, out + row * kHeadDim, warp - 4, tiles);
    rings.waits.end();
  }
}

}  // namespace

int main(int argc, char** argv) {
  need_hopper();
  GPU(cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Rings)));
  return run_step("step 6 warps with roles", argc, argv, [](const Tensors& t) {
    attend<<<dim3(t.length / kTile, kHeads), kThreads, sizeof(Rings)>>>(describe(t), t.out,
                                                                        t.length / kTile);
  });
}
