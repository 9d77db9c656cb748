// course/03_flash_fast/step7_guessed_maximum_gpu.cu [LENGTH]
// Needs sm_90a.
// Step 7: the softmax of a tile is computed while the tensor cores multiply the values of the tile
// before, and the two consumer warpgroups take turns at issuing products. The row maximum is
// guessed: a row keeps that of its first tile as long as no weight grows too large against it. So
// the common tile has no maximum, no exchange between lanes and no rescaling.
#include "rings.h"
#include "softmax.h"

namespace {

using namespace course;

// Weights may exceed 1: bf16 has the exponents of fp32, and out is divided by their sum anyway.
constexpr float kLargestSum = 1 << 24;

class Consumer {
 public:
  __device__ __forceinline__ Consumer(Rings& rings, int group)
      : rings_(rings), group_(group), queries_(operand(smem_address(rings.q) + group * 64 * 128)) {}

  __device__ __forceinline__ void run(bf16* to, int tiles) {
    if (group_ == 1) pass_turn();  // warpgroup 0 has the first turn
    rings_.waits.await(rings_.q_full, 0);
    take_first_tile(tiles);
    // Two sets of weights: one is made while a product still reads the other one. The compiler must
    // know which is which, so the loop has a step for each.
    for (int tile = 1; tile < tiles; tile += 2) {
      step<0>(tile + 1 < tiles);
      if (tile + 1 == tiles) break;
      step<1>(tile + 2 < tiles);
    }
    if (tiles % 2 == 1)
      multiply_last_values(weights_[0]);
    else
      multiply_last_values(weights_[1]);
    await_products<0>();
    is_ready(out_);
    store_rows(to, out_, rows_);
  }

 private:
  __device__ __forceinline__ void multiply_last_values(const Weights& weights) {
    begin_products();
    multiply_values(out_, weights, operand(smem_address(rings_.v[v_.stage])));
  }

  // Turns: each warpgroup has a named barrier, at which it waits and the other one only arrives.
  __device__ __forceinline__ void take_turn() const { meet(1 + group_, 256); }
  __device__ __forceinline__ void pass_turn() const { pass(2 - group_, 256); }

  // The first tile sets the maxima. There is nothing to overlap it with yet.
  __device__ __forceinline__ void take_first_tile(int tiles) {
    rings_.waits.await(rings_.k_full[k_.stage], k_.parity);
    take_turn();
    begin_products();
    multiply_keys(scores_, queries_, operand(smem_address(rings_.k[k_.stage])));
    pass_turn();
    await_products<0>();
    is_ready(scores_);
    arrive_as_warp(rings_.k_empty[k_.stage]);
    k_.next();
    float rescale[2];
    raise_tops(rows_, scores_, rescale);
    make_weights(weights_[0], rows_.sum, scores_, rows_);
    if (tiles > 1) rings_.waits.await(rings_.k_full[k_.stage], k_.parity);
    rings_.waits.await(rings_.v_full[v_.stage], v_.parity);
  }

  // The scores of one more tile, and the values of the tile before it, whose weights are set kOld.
  // Both have arrived: nothing stands between the two products.
  template <int kOld>
  __device__ __forceinline__ void step(bool has_more) {
    take_turn();
    begin_products();
    multiply_keys(scores_, queries_, operand(smem_address(rings_.k[k_.stage])));
    multiply_values(out_, weights_[kOld], operand(smem_address(rings_.v[v_.stage])));
    pass_turn();
    await_products<1>();  // the scores are there; the other product goes on
    is_ready(scores_);
    arrive_as_warp(rings_.k_empty[k_.stage]);
    k_.next();
    const int old_values = v_.stage;
    v_.next();

    const bool has_keys = is_over_now(rings_.k_full[k_.stage], k_.parity);  // needed below
    const bool has_values = is_over_now(rings_.v_full[v_.stage], v_.parity);
    float sum[2];
    make_weights(weights_[1 - kOld], sum, scores_, rows_);
    const bool is_wrong = __any_sync(~0u, !(sum[0] <= kLargestSum && sum[1] <= kLargestSum));

    // These two loops stand here for a second reason: ptxas moves arithmetic past the wait for
    // products, but not past a loop. Without them the exponentials would come after it.
    if (has_more && !has_keys) rings_.waits.await(rings_.k_full[k_.stage], k_.parity);
    rings_.waits.await(rings_.v_full[v_.stage], v_.parity, has_values);
    await_products<0>();
    is_ready(out_);
    arrive_as_warp(rings_.v_empty[old_values]);
    if (__builtin_expect(is_wrong, 0)) {  // a wrong guess: this tile again, with new maxima
      float rescale[2];
      raise_tops(rows_, scores_, rescale);
      make_weights(weights_[1 - kOld], sum, scores_, rows_);
      rows_.sum[0] *= rescale[0];
      rows_.sum[1] *= rescale[1];
      multiply(out_, rescale);
    }
    rows_.sum[0] += sum[0];
    rows_.sum[1] += sum[1];
  }

  Rings& rings_;
  const int group_;
  const std::uint64_t queries_;
  Place<kKeyStages> k_;
  Place<kValueStages> v_;
  Scores scores_ = {}, out_ = {};
  Weights weights_[2];
  Rows rows_;
};

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
    const std::size_t row = std::size_t(head) * tiles * kTile + first_query + 16 * (warp - 4);
    Consumer(rings, warp / 4 - 1).run(out + row * kHeadDim, tiles);
    rings.waits.end();
  }
}

}  // namespace

int main(int argc, char** argv) {
  need_hopper();
  GPU(cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Rings)));
  return run_step("step 7 overlap and a guessed maximum", argc, argv, [](const Tensors& t) {
    attend<<<dim3(t.length / kTile, kHeads), kThreads, sizeof(Rings)>>>(describe(t), t.out,
                                                                        t.length / kTile);
  });
}
