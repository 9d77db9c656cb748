// course/03_flash_fast/step5_wgmma_gpu.cu [LENGTH]
// Needs sm_90a.
// Step 5: products of a whole warpgroup, which read shared memory themselves (wgmma), and tiles
// that one thread asks for and a copy engine brings (TMA). Everybody does the same at the same
// time: load, scores, softmax, output. So the tensor cores stand still while exponentials are
// computed, and the other way round.
#include "products.h"
#include "softmax.h"

namespace {

using namespace course;

constexpr int kThreads = 256;  // two warpgroups, 64 queries each

struct Shared {
  unsigned char q[kTileBytes], k[2][kTileBytes], v[2][kTileBytes];
  std::uint64_t is_full[2];
  Waits waits;
};

__global__ void __launch_bounds__(kThreads, 1)
    attend(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
           const __grid_constant__ CUtensorMap v_map, bf16* to, int tiles) {
  extern __shared__ __align__(1024) unsigned char memory[];  // 1024: the period of the swizzle
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int first_query = int(blockIdx.x) * kTile, head = int(blockIdx.y);
  if (threadIdx.x == 0) {
    for (std::uint64_t& barrier : shared.is_full) init_barrier(barrier, 1);
    shared.waits.gave_up = 0;
    publish_barriers();
  }
  __syncthreads();

  const auto load = [&](int tile) {
    std::uint64_t& is_full = shared.is_full[tile % 2];
    arrive_and_expect(is_full, (tile == 0 ? 3 : 2) * kTileBytes);  // the first one brings q, too
    if (tile == 0) load_tile(shared.q, q_map, is_full, first_query, head);
    load_tile(shared.k[tile % 2], k_map, is_full, tile * kTile, head);
    load_tile(shared.v[tile % 2], v_map, is_full, tile * kTile, head);
  };
  if (threadIdx.x == 0) load(0);

  // The shuffle tells the compiler that all lanes have the same number. Addresses of operands then
  // stay in the registers that a warp shares, and products are issued one right after the other.
  const int warp = __shfl_sync(~0u, int(threadIdx.x / 32), 0);
  const std::uint64_t queries = operand(smem_address(shared.q) + warp / 4 * 64 * 128);
  Scores scores = {}, out = {};
  Rows rows;
  for (int tile = 0; tile < tiles; ++tile) {
    if (threadIdx.x == 0 && tile + 1 < tiles) load(tile + 1);
    shared.waits.await(shared.is_full[tile % 2], tile / 2 % 2);

    begin_products();
    multiply_keys(scores, queries, operand(smem_address(shared.k[tile % 2])));
    await_products<0>();
    is_ready(scores);

    Weights weights;
    float rescale[2];
    online_softmax(weights, scores, rows, rescale);
    multiply(out, rescale);

    begin_products();
    multiply_values(out, weights, operand(smem_address(shared.v[tile % 2])));
    await_products<0>();
    is_ready(out);
    __syncthreads();  // this tile may be overwritten
  }

  const std::size_t row = std::size_t(head) * tiles * kTile + first_query + 16 * warp;
  store_rows(to + row * kHeadDim, out, rows);
  shared.waits.end();
}

}  // namespace

int main(int argc, char** argv) {
  need_hopper();
  GPU(cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  return run_step("step 5 wgmma and TMA", argc, argv, [](const Tensors& t) {
    attend<<<dim3(t.length / kTile, kHeads), kThreads, sizeof(Shared)>>>(
        describe(t.q, t.length), describe(t.k, t.length), describe(t.v, t.length), t.out,
        t.length / kTile);
  });
}
