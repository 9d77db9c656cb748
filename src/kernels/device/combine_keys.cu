// src/kernels/device/combine_keys.cu
// One warp per key of a split list. Slots are added in the order of the list, not of completion:
// the same bits every time.
#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/combine_keys.h"
#include "kernels/device/rows.cuh"

namespace keyhole::device {
namespace {

constexpr int32_t kKeyRowsPerCta = 8;
constexpr int32_t kKeyColumnsPerLane = 4;

// What a warp adds up: one key of a split list of one head.
struct SplitKey {
  int32_t head_index;
  int32_t num_slots;
  int64_t key;
  int64_t first;  // its row in the first slot; the next slot's is tile.k further
};
// False when there is nothing to do.
__device__ bool my_split_key(const BackwardParams& p, SplitKey& mine) {
  const TileView& view = p.view;
  const WorkView& work = view.t_work;
  const int32_t ctas_per_list = (view.tile.k + kKeyRowsPerCta - 1) / kKeyRowsPerCta;
  const int32_t list = int32_t(blockIdx.x) / ctas_per_list;
  const int32_t row =
      int32_t(blockIdx.x) % ctas_per_list * kKeyRowsPerCta + int32_t(threadIdx.x) / 32;
  mine.head_index = list / work.splits_per_group;
  const int32_t group = view.group_of[mine.head_index];
  if (group < 0 || row >= view.tile.k) return false;
  const SplitList split =
      work.splits[int64_t{group} * work.splits_per_group + list % work.splits_per_group];
  const ResidueClass residue = view.residues[split.list / view.k_tiles];
  const int64_t index = int64_t{split.list % view.k_tiles} * view.tile.k + row;
  if (index >= residue.num_k) return false;
  mine.num_slots = split.num_slots;  // 0: padding
  mine.key = residue.first_k + view.stride * index;
  mine.first =
      (int64_t{mine.head_index} * work.slots_per_group + split.first_slot) * view.tile.k + row;
  return split.num_slots > 0;
}

// Query heads of one kv head add to the same sums. If the order must be fixed, each kv head has one
// query head.
template <class T>
__device__ void add_slots(const BackwardParams& p, const SplitKey& mine, const float* slots,
                          float* sums, const DeviceTensor& to, int32_t cols) {
  const int32_t batch = mine.head_index / p.sizes.heads;
  const int32_t kv_head = p.sizes.kv_head_of(mine.head_index - batch * p.sizes.heads);
  const GradientRow<T> row = gradient_row<T>(to, sums, p.found_nonfinite, p.sizes.kv_heads,
                                             p.sizes.k_len, cols, batch, kv_head, mine.key);
  const int64_t step = int64_t{p.view.tile.k} * cols;
  for (int32_t first = int32_t(threadIdx.x % 32); first < cols; first += 32 * kKeyColumnsPerLane) {
    float total[kKeyColumnsPerLane] = {};
    const float* slot = slots + mine.first * cols + first;
#pragma unroll 8  // loads run ahead of the sums, which depend on one another
    for (int32_t s = 0; s < mine.num_slots; ++s, slot += step) {
#pragma unroll
      for (int32_t i = 0; i < kKeyColumnsPerLane; ++i) {
        if (first + 32 * i < cols) total[i] += slot[32 * i];
      }
    }
#pragma unroll
    for (int32_t i = 0; i < kKeyColumnsPerLane; ++i) {
      const int32_t col = first + 32 * i;
      if (sums == nullptr) {
        row.put(col, total[i]);
      } else if (col < cols) {
        atomicAdd(row.sum + col, total[i]);
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(32 * kKeyRowsPerCta)
    combine_keys(const __grid_constant__ BackwardParams p) {
  SplitKey mine;
  if (!my_split_key(p, mine)) return;
  add_slots<T>(p, mine, p.slots.dk, p.sums.dk, p.dk, p.sizes.head_dim);
  add_slots<T>(p, mine, p.slots.dv, p.sums.dv, p.dv, p.sizes.v_head_dim);
}

}  // namespace

void launch_combine_keys(const BackwardParams& params, DType dtype, cudaStream_t stream) {
  const int64_t ctas = int64_t{params.sizes.num_heads()} * params.view.t_work.splits_per_group *
                       ceil_div(params.view.tile.k, kKeyRowsPerCta);
  if (ctas == 0) return;
  const uint32_t grid = uint32_t(narrow(ctas, "attention: CTAs of the launch that combines keys"));
  with_device_storage(dtype, [&](auto storage) {
    combine_keys<decltype(storage)><<<grid, 32 * kKeyRowsPerCta, 0, stream>>>(params);
  });
  check_cuda(cudaGetLastError(), "launching the combination of keys");
}

}  // namespace keyhole::device
