// src/kernels/device/combine.cu
// One warp per row of a split list. Slots are combined in the order of the list, not of completion:
// the same bits every time.
#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/combine.h"
#include "kernels/device/row_target.cuh"

namespace keyhole::device {
namespace {

constexpr int32_t kCombinedRowsPerCta = 8;
constexpr int32_t kCombinedColumnsPerLane = 4;

// What a warp combines: row `row` of the tile of a split list of one head.
struct SplitRow {
  int32_t head_index;
  int32_t num_slots;
  int64_t query;
  int64_t first;  // its row in the first slot; the next slot's is `step` further
  int64_t step;
};

// False when there is nothing to do.
__device__ bool my_split_row(const ForwardParams& p, SplitRow& mine) {
  const TileView& view = p.view;
  const int32_t ctas_per_list = (view.tile.q + kCombinedRowsPerCta - 1) / kCombinedRowsPerCta;
  const int32_t list = int32_t(blockIdx.x) / ctas_per_list;
  const int32_t row =
      int32_t(blockIdx.x) % ctas_per_list * kCombinedRowsPerCta + int32_t(threadIdx.x) / 32;
  mine.head_index = list / view.work.splits_per_group;
  const int32_t group = view.group_of[mine.head_index];
  if (group < 0 || row >= view.tile.q) return false;
  const SplitList split =
      view.work
          .splits[int64_t{group} * view.work.splits_per_group + list % view.work.splits_per_group];
  const int32_t class_index = split.list / view.q_tiles, q_tile = split.list % view.q_tiles;
  const ResidueClass residue = view.residues[class_index];
  const int64_t index = int64_t{q_tile} * view.tile.q + row;
  if (index >= residue.num_q) return false;
  mine.num_slots = split.num_slots;  // 0: padding
  mine.query = residue.first_q + view.stride * index;
  mine.first = slot_row(p, mine.head_index, split.first_slot, row);
  mine.step = view.tile.q;
  return split.num_slots > 0;
}

template <class T>
__global__ void __launch_bounds__(32 * kCombinedRowsPerCta)
    combine(const __grid_constant__ ForwardParams p) {
  SplitRow mine;
  if (!my_split_row(p, mine)) return;
  const int32_t lane = int32_t(threadIdx.x % 32), cols = p.sizes.v_head_dim;

  float top = -INFINITY;  // over all slots; skips NaN
  for (int32_t s = lane; s < mine.num_slots; s += 32) {
    top = fmaxf(top, p.slots.max[mine.first + s * mine.step]);
  }
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));

  const auto weight_of = [&](int32_t s) {
    return weight_against(p.slots.max[mine.first + s * mine.step], top);
  };
  float sum = 0;
  for (int32_t s = 0; s < mine.num_slots; ++s) {
    sum += weight_of(s) * p.slots.sum[mine.first + s * mine.step];
  }
  const RowFinish finish = finish_row(p, mine.head_index, mine.query, top, sum);
  const RowTarget<T> target = row_target<T>(p, mine.head_index, mine.query, finish);
  __syncwarp();  // all lanes have read the state's lse
  if (lane == 0) store_lse(p, mine.head_index, mine.query, finish.lse2);

  for (int32_t first = lane; first < cols; first += 32 * kCombinedColumnsPerLane) {
    float out[kCombinedColumnsPerLane] = {};
    for (int32_t s = 0; s < mine.num_slots; ++s) {
      const float weight = weight_of(s);
      const float* row = p.slots.out + (mine.first + s * mine.step) * cols;
#pragma unroll
      for (int32_t i = 0; i < kCombinedColumnsPerLane; ++i) {
        if (first + 32 * i < cols) out[i] += weight * row[first + 32 * i];
      }
    }
#pragma unroll
    for (int32_t i = 0; i < kCombinedColumnsPerLane; ++i) {
      const int32_t col = first + 32 * i;
      if (col < cols) target.store(col, target.value(col, out[i]));
    }
  }
}

}  // namespace

void launch_combine(const ForwardParams& params, DType dtype, cudaStream_t stream) {
  const WorkView& work = params.view.work;
  const int64_t ctas = int64_t{params.sizes.num_heads()} * work.splits_per_group *
                       ceil_div(params.view.tile.q, kCombinedRowsPerCta);
  if (ctas == 0) return;
  const uint32_t grid = uint32_t(narrow(ctas, "attention: CTAs of the combine launch"));
  with_device_storage(dtype, [&](auto storage) {
    combine<decltype(storage)><<<grid, 32 * kCombinedRowsPerCta, 0, stream>>>(params);
  });
  check_cuda(cudaGetLastError(), "launching the forward combine");
}

}  // namespace keyhole::device
