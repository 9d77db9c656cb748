// src/kernels/sm80/forward.cuh
// Attention over the tile lists of one part of a plan, on tensor cores with mma.sync: q, k, v and
// lists in, out and lse (or states, or slots) out. One CTA processes one work item; each warp owns
// some rows.
//
// While a tile is computed, the keys of the next tile and the values of this one are copied. One
// barrier per tile signals that they have arrived and that the slots of the previous tile are free.
// forward_steps.cuh has the mathematics, list_walk.cuh the list, forward_result.cuh the epilogue.
#pragma once

#include <cfloat>

#include "kernels/device/bitmap.cuh"
#include "kernels/device/check_cuda.h"
#include "kernels/device/forward_call.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_launch.h"
#include "kernels/mma/ptx.cuh"
#include "kernels/sm80/config.h"
#include "kernels/sm80/forward_launch.h"
#include "kernels/sm80/forward_loads.cuh"
#include "kernels/sm80/forward_result.cuh"
#include "kernels/sm80/forward_steps.cuh"
#include "kernels/sm80/list_walk.cuh"

namespace keyhole::sm80 {

// Applies the sign of a negative or zero scale to the queries, so that 0 x NaN and the sign of
// infinity follow the definition.
template <class C>
__device__ __noinline__ void change_sign_of_queries(uint32_t warp_rows, float scale) {
  const int lane = int(threadIdx.x) % 32;
  for (int at = 4 * lane; at < C::rows_per_warp * Shape<C>::row_bytes; at += 128) {
    const uint32_t two = load_shared(warp_rows + at);
    store_shared(warp_rows + at, scale < 0 ? two ^ 0x80008000u : 0);
  }
  __syncwarp();
}

// Columns from head_dim on are never copied: they are cleared once, at the start.
template <class C>
__device__ __noinline__ void clear_shared(uint32_t smem) {
  for (int at = 16 * int(threadIdx.x); at < Shape<C>::shared_bytes; at += 16 * Shape<C>::threads) {
    store_shared_vector(smem + at, uint4{});
  }
  __syncthreads();
}

// The first row of a CTA in its tile.
template <class C>
__device__ __forceinline__ int32_t cta_row() {
  return int32_t(blockIdx.x % Shape<C>::ctas_per_tile) * Shape<C>::rows;
}

// What a CTA keeps in shared memory beside its tiles: the mainloop has no registers to spare.
struct Control {
  Work work;
  ListWalk list;
  const char *keys, *values;  // row 0 of the class
  int32_t whole_steps;        // steps of 64 keys in the class,
  int32_t rows_of_last;       // and the keys left after them
};

template <class T>
__device__ const char* class_row(const device::DeviceTensor& tensor, int32_t batch, int32_t head,
                                 int64_t first) {
  return reinterpret_cast<const char*>(tensor.row<T>(batch, head, first));
}

// The mainloop over the tiles of the work item.
template <class T, class C>
__device__ __forceinline__ void mainloop(const ForwardParams& p, const Rule& rule, Control& control,
                                         uint32_t smem_q, Accumulators<C>& acc) {
  using S = Shape<C>;
  const uint32_t smem_k = smem_q + S::rows * S::row_bytes;
  const uint32_t smem_v = smem_k + S::key_slots * S::step_bytes;
  ListWalk& list = control.list;
  const auto rows_in = [&](int32_t source_step) {
    const int32_t whole = control.whole_steps;
    return source_step < whole ? S::step_keys : source_step > whole ? 0 : control.rows_of_last;
  };
  // Copies step j of a tile to the slot of step `step` of the work item.
  const auto copy_keys = [&](int32_t tile, int j, int32_t step) {
    const int32_t source = tile * S::steps + j;
    const ClassRows rows = {control.keys, p.view.stride * p.k.row_stride * 2, p.sizes.head_dim};
    copy_rows<C, S::step_keys>(smem_k + (step & (S::key_slots - 1)) * S::step_bytes, rows,
                               int64_t{source} * S::step_keys, rows_in(source));
  };
  const auto copy_values = [&](int32_t tile, int j, int32_t step) {
    const int32_t source = tile * S::steps + j;
    const ClassRows rows = {control.values, p.view.stride * p.v.row_stride * 2, p.sizes.v_head_dim};
    copy_rows<C, S::step_keys>(smem_v + (step & (S::value_slots - 1)) * S::step_bytes, rows,
                               int64_t{source} * S::step_keys, rows_in(source));
  };
  // Copies the keys of a tile and its values, except those of the last step: they are needed one
  // tile later.
  const auto copy_tile = [&](int32_t tile, int32_t step) {
#pragma unroll
    for (int j = 0; j < S::steps; ++j) copy_keys(tile, j, step + j);
#pragma unroll
    for (int j = 0; j + 1 < S::steps; ++j) copy_values(tile, j, step + j);
  };

  if constexpr (C::key_stages == 2) copy_tile(list.entry(0).tile, 0);
  commit_copies();
  await_copies<0>();  // and the queries
  __syncthreads();
  const uint32_t warp_q = smem_q + (threadIdx.x / 32) * C::rows_per_warp * S::row_bytes;
  if (!(p.sizes.scale > 0)) change_sign_of_queries<C>(warp_q, p.sizes.scale);
  Queries<C> queries(warp_q);

  uint32_t probabilities[S::blocks][4][4];
  bool is_waiting = false;  // the previous step's probabilities still wait for their values
  uint32_t tile_mask[S::steps][S::blocks] = {};  // a lane's words of a partial tile
  bool is_partial = false;
  for (int32_t step = 0, index = 0; index <= control.work.num_tiles; index = ++step / S::steps) {
    const int j = step % S::steps;
    const bool is_beyond = index == control.work.num_tiles;  // only the last values are left
    if (j == 0) {
      is_partial = !is_beyond && list.entry(index).bitmap != kFull;
      if (is_partial) {  // loads while the CTA waits for its copies
        const uint32_t thread = thread_index();
        const uint32_t row = cta_row<C>() + thread / 32 * C::rows_per_warp;
        const int64_t first = list.entry(index).bitmap * device::mma_words(C::tile_q, C::tile_k) +
                              (row * 2 + thread % 32) * S::steps;
        const uint32_t* words = reinterpret_cast<const uint32_t*>(p.view.bitmaps) + first;
#pragma unroll
        for (int b = 0; b < S::blocks; ++b) {
#pragma unroll
          for (int i = 0; i < S::steps; ++i) tile_mask[i][b] = words[b * 32 * S::steps + i];
        }
      }
      // After this barrier all slots before this step are free, except the values of the previous
      // step.
      if constexpr (C::key_stages == 2) await_copies<0>();
      __syncthreads();
      if constexpr (C::key_stages == 1) {
        if (!is_beyond) copy_keys(list.entry(index).tile, 0, step);
        commit_copies();
      }
      if constexpr (C::value_stages == 1) {
        if (step > 0) copy_values(list.entry(index - 1).tile, S::steps - 1, step - 1);
        commit_copies();
      } else if (!is_beyond) {
        copy_values(list.entry(index).tile, S::steps - 1, step + S::steps - 1);
      }
      if constexpr (C::key_stages == 2) {
        const bool has_next = index + 1 < control.work.num_tiles;
        if (has_next) copy_tile(list.entry(index + 1).tile, step + S::steps);
      } else {
        await_copies<1>();
        __syncthreads();
      }
      if (index + 2 < control.work.num_tiles && thread_index() == 0) list.find(index + 2);
      if constexpr (C::key_stages == 2) commit_copies();
    }

    Step<C> now;
    const uint32_t thread = thread_index(), me = thread % 32;
    if constexpr (!C::keeps_queries) {
      queries.find(smem_q + thread / 32 * C::rows_per_warp * S::row_bytes);
    }
    now.keys = smem_k + (step & (S::key_slots - 1)) * S::step_bytes +
               Swizzle<C>::offset(me % 8 + me / 16 * 8, me / 8 % 2);
    now.values = smem_v + ((step - 1) & (S::value_slots - 1)) * S::step_bytes +
                 Swizzle<C>::offset(me % 16, me / 16);
    now.is_partial = is_partial;
    bool is_skipped = is_beyond;
    if (is_partial) {
      uint32_t any_bit = 0;
#pragma unroll
      for (int b = 0; b < S::blocks; ++b) {
        now.mask[b] = S::steps == 1 || j == 0 ? tile_mask[0][b] : tile_mask[S::steps - 1][b];
        any_bit |= now.mask[b];
      }
      is_skipped |= !__any_sync(~0u, any_bit != 0);  // no pair attends in these rows
    }

    const bool is_common = is_waiting && !is_skipped && !rule.is_bent();
    SliceScores<C> first_scores;
    if constexpr (C::value_stages == 1) {
      // The wait for values is hidden behind the first scores. Some warps compute none, so the
      // barrier is outside, where all of them reach it.
      if (is_common) make_scores<T, C>(first_scores, queries, now, 0);
      await_copies<C::key_stages == 2 ? 1 : 0>();
      __syncthreads();
    }
    bool is_done = is_skipped;
    if (is_common) {
      if constexpr (C::value_stages == 2) make_scores<T, C>(first_scores, queries, now, 0);
      is_done = do_step<T, C>(acc, probabilities, queries, now, rule, first_scores);
    } else if (is_waiting) {
      add_values<T, C>(acc, probabilities, now.values);
    }
    if (!is_done) do_step_with_new_base<T, C>(acc, probabilities, queries, now, rule);
    is_waiting = !is_skipped;
  }
}

template <class T, class C>
__global__ void __launch_bounds__(Shape<C>::threads, C::ctas_per_sm)
    forward(const __grid_constant__ ForwardParams p, const __grid_constant__ Rule rule) {
  using S = Shape<C>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int64_t item = blockIdx.x / S::ctas_per_tile;
  const Work work = device::my_work(p.sizes, p.view, p.heads_per_section, item);
  const int64_t cta_index =
      int64_t{work.row_tile} * C::tile_q + cta_row<C>();  // in its residue class
  static_assert(S::shared_bytes + sizeof(Control) <= kShared227KiB, "does not fit: drop a stage");
  if (work.is_nothing || cta_index >= work.residue.num_q) return;

  const int warp = int(threadIdx.x) / 32;
  const uint32_t smem_q = smem_address(shared);
  __shared__ Control control;
  if (threadIdx.x == 0) {
    control.work = work;
    control.keys = class_row<T>(p.k, work.batch, work.kv_head, work.residue.first_k);
    control.values = class_row<T>(p.v, work.batch, work.kv_head, work.residue.first_k);
    control.whole_steps = int32_t(work.residue.num_k / S::step_keys);
    control.rows_of_last = int32_t(work.residue.num_k % S::step_keys);
  }
  if (work.num_tiles > 0) {
    if (min(p.sizes.head_dim, p.sizes.v_head_dim) < C::head_dim) clear_shared<C>(smem_q);
    const ClassRows rows = {class_row<T>(p.q, work.batch, work.head, work.residue.first_q),
                            p.view.stride * p.q.row_stride * 2, p.sizes.head_dim};
    copy_rows<C, S::rows>(smem_q, rows, cta_index,
                          int32_t(min(work.residue.num_q - cta_index, int64_t{S::rows})));
    if (warp == 0) control.list.begin(work.runs, work.num_runs, work.first_tile);
  }
  __syncthreads();

  Accumulators<C> acc;
#pragma unroll
  for (int b = 0; b < S::blocks; ++b) {
#pragma unroll
    for (int n = 0; n < C::head_dim / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc.out[b][n][i] = 0;
    }
    acc.sum[b][0] = acc.sum[b][1] = 0;
    acc.minus_base[b][0] = acc.minus_base[b][1] = FLT_MAX;
  }
  if (work.num_tiles > 0) mainloop<T, C>(p, rule, control, smem_q, acc);
  const int32_t warp_row = int32_t(thread_index() / 32) * C::rows_per_warp;
  store_rows<T, C>(p, control.work, item, cta_row<C>() + warp_row, smem_q + warp_row * S::row_bytes,
                   acc);
}

template <class T, class C>
void launch_forward(const ForwardParams& p, cudaStream_t stream) {
  const int64_t ctas =
      int64_t{p.sizes.num_heads()} * p.view.work.items_per_group * Shape<C>::ctas_per_tile;
  KEYHOLE_CHECK(ctas <= INT32_MAX, "sm80.forward: the plan gives ", ctas, " work items; at most ",
                INT32_MAX, " fit one launch: split the batch");
  if (ctas == 0) return;
  constexpr int bytes = Shape<C>::shared_bytes;
  static device::OncePerGpu reserve;
  reserve([] {
    check_cuda(
        cudaFuncSetAttribute(forward<T, C>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "reserving shared memory for sm80.forward");
    // Copies bypass the L1 cache, so all of its memory can be shared memory.
    check_cuda(cudaFuncSetAttribute(forward<T, C>, cudaFuncAttributePreferredSharedMemoryCarveout,
                                    cudaSharedmemCarveoutMaxShared),
               "preferring shared memory for sm80.forward");
  });
  forward<T, C><<<uint32_t(ctas), Shape<C>::threads, bytes, stream>>>(
      p, device::rule_of_magnitude<Rule>(p.sizes));
  check_cuda(cudaGetLastError(), "launching sm80.forward");
}

// The configuration with the plan's tile.
template <class T, class... Configs>
void launch_by_tile(const ForwardParams& p, cudaStream_t stream) {
  const TileShape tile = p.view.tile;
  const bool is_known = ((tile == TileShape{Configs::tile_q, Configs::tile_k} &&
                          (launch_forward<T, Configs>(p, stream), true)) ||
                         ...);
  KEYHOLE_ASSERT(is_known, "sm80.forward was given tiles of ", to_string(tile));
}

// The configurations for a given amount of shared memory.
template <class T, int kHeadDim>
device::LaunchTiles launch_for(int64_t shared_bytes) {
  const bool has_227 = shared_bytes >= kShared227KiB, has_163 = shared_bytes >= kShared163KiB;
  if constexpr (kHeadDim == 64) {
    return launch_by_tile<T, Dim64, Dim64Small>;
  } else if constexpr (kHeadDim == 96) {
    return launch_by_tile<T, Dim96>;
  } else if constexpr (kHeadDim == 128) {
    return has_227   ? launch_by_tile<T, Dim128, Dim128Small>
           : has_163 ? launch_by_tile<T, Dim128For163KiB, Dim128Small>
                     : launch_by_tile<T, Dim128, Dim128SmallFor99KiB>;
  } else if constexpr (kHeadDim == 192) {
    return has_163 ? launch_by_tile<T, Dim192> : launch_by_tile<T, Dim192For99KiB>;
  } else {
    static_assert(kHeadDim == 256);
    return has_227   ? launch_by_tile<T, Dim256>
           : has_163 ? launch_by_tile<T, Dim256For163KiB>
                     : launch_by_tile<T, Dim256For99KiB>;
  }
}

template <DType kType, int kHeadDim>
void run_forward(const ForwardArgs& args) {
  device::run_forward_parts(args,
                            launch_for<device::Storage<kType>, kHeadDim>(args.launch.shared_bytes),
                            mma::gather_forward_launch(args));
}

}  // namespace keyhole::sm80
