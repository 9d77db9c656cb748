// src/kernels/simple/backward.cuh
// One kernel for both directions. A CTA keeps a tile of rows ("staying") and loops over the tiles
// of its lists ("passing"):
//   keys stay     queries pass   dv += p' dout   dk += ds' q      p  = exp2(s - lse2)
//   queries stay  keys pass      dq += ds k                       ds = p (dout . v - delta) slope
// All products are fp32, from shared memory. A thread accumulates 4 staying rows x 8 columns of a
// slice of 128 columns. A wider head takes one CTA per slice, and each of them computes p and ds
// again.
#pragma once

#include "kernels/device/pair_gradient.cuh"
#include "kernels/device/rows.cuh"

namespace keyhole::simple {

using device::BackwardParams;
using device::DeviceTensor;

struct Tile64 {
  static constexpr int32_t size = 64;  // rows of a tile, passing or staying
  static constexpr int32_t ctas = 2;   // per SM: 128 registers
};
struct Tile32 {
  static constexpr int32_t size = 32;
  static constexpr int32_t ctas = 3;  // 168 registers: each thread loads as many rows as with 64
};

inline constexpr int32_t kSlice = 128;  // columns of a gradient that one CTA computes
inline constexpr int32_t kDepth = 32;   // columns of q . k and dout . v, or passing rows, at a time

template <class C>
inline constexpr int32_t kThreads = 4 * C::size;  // 16 pairs of a tile of 64 each, 8 of one of 32

template <class C>
struct alignas(16) BackwardShared {
  // Columns of both sides' rows. The 4 extra floats a row put 8 rows in different banks.
  struct Columns {
    float passing[C::size][kDepth + 4], staying[C::size][kDepth + 4];
  };
  union {
    Columns columns;
    float slice[kDepth][kSlice];  // passing rows of what p or ds is multiplied with
  };
  // dout . v - delta, then p, then ds. The 8 extra floats: 4 rows x 8 columns are written without
  // bank conflicts.
  float weights[C::size][C::size + 8];
  float lse2[C::size], delta[C::size];  // of the tile's queries
};

// The part of a tile that a thread computes. Pairs: passing rows `passing` + 16 i, staying rows
// `staying` + size / 4 j. Accumulators: staying rows 4 `row4` ... + 3, columns 4 `col4` ... + 3 and
// 64 + 4 `col4` ... + 3. A warp is 4 x 8 threads of either, so it reads 8 different rows or columns
// at a time.
template <class C>
struct Thread {
  static constexpr int32_t kPassing = C::size / 16, kStaying = 4;  // pairs: rows x columns
  int32_t passing, staying, row4, col4;
};
template <class C>
__device__ Thread<C> this_thread() {
  constexpr int32_t kWarpsAcross = C::size / 32;
  const int32_t warp = int32_t(threadIdx.x / 32), lane = int32_t(threadIdx.x % 32);
  return {warp / kWarpsAcross * 4 + lane / 8, warp % kWarpsAcross * 8 + lane % 8,
          warp / 2 * 4 + lane / 8, warp % 2 * 8 + lane % 8};
}

// Rows of one tile of one head: row r begins at first + r * step, for r < count.
template <class Storage>
struct TileRows {
  const Storage* first;
  int64_t step;
  int32_t count;  // the last tile of a class may be shorter

  // Whether four neighbouring columns, from every fourth one on, may be read with one load.
  __device__ bool is_aligned(int32_t cols) const {
    const int64_t misfit = int64_t(reinterpret_cast<uintptr_t>(first) / sizeof(Storage)) | step;
    return ((misfit | cols) & 3) == 0;
  }
};

// One side of the pairs, for one head: queries (q, dout) or keys (k, v).
struct Side {
  int64_t first, stride, num_rows;  // of the residue class
  int32_t batch, head;

  __device__ int32_t rows_of(int32_t tile, int32_t size) const {
    return int32_t(min(int64_t{size}, num_rows - int64_t{tile} * size));
  }
  __device__ int64_t index(int64_t row) const { return first + stride * row; }
  template <class C, class Storage>
  __device__ TileRows<Storage> tile_rows(const DeviceTensor& tensor, int32_t tile) const {
    return {tensor.row<Storage>(batch, head, index(int64_t{tile} * C::size)),
            stride * tensor.row_stride, rows_of(tile, C::size)};
  }
};

// Loads columns [col, col + kCols) of kRows rows from `row` on; zeros past the ends.
template <class C, int32_t kRows, int32_t kCols, int32_t kPitch, class Storage>
__device__ void load(const TileRows<Storage>& rows, int32_t row, int32_t col, int32_t cols,
                     float (&to)[kRows][kPitch]) {
  constexpr int32_t kFours = kRows * kCols / 4 / kThreads<C>;  // per thread
  static_assert(kFours * kThreads<C> * 4 == kRows * kCols, "every thread loads as often");
  float4 four[kFours];
  const auto fetch = [&](auto is_aligned) {
#pragma unroll
    for (int32_t n = 0; n < kFours; ++n) {
      const int32_t i = int32_t(threadIdx.x) + n * kThreads<C>;
      const int32_t r = i / (kCols / 4), c = i % (kCols / 4) * 4;
      const int32_t left = row + r < rows.count ? cols - col - c : 0;
      four[n] = device::load_four<is_aligned>(rows.first + (row + r) * rows.step + col + c, left);
    }
  };
  if (rows.is_aligned(cols)) {  // outside of the loop, so that all loads are in flight together
    fetch(std::true_type());
  } else {
    fetch(std::false_type());
  }
#pragma unroll
  for (int32_t n = 0; n < kFours; ++n) {
    const int32_t i = int32_t(threadIdx.x) + n * kThreads<C>;
    *reinterpret_cast<float4*>(&to[i / (kCols / 4)][i % (kCols / 4) * 4]) = four[n];
  }
}

// product[i][j] = passing row i . staying row j, over `cols` columns.
template <class C, class Storage>
__device__ void multiply(BackwardShared<C>& shared, const Thread<C>& thread,
                         const TileRows<Storage>& passing, const TileRows<Storage>& staying,
                         int32_t cols, float (&product)[Thread<C>::kPassing][4]) {
#pragma unroll
  for (auto& row : product) row[0] = row[1] = row[2] = row[3] = 0;
  for (int32_t col = 0; col < cols; col += kDepth) {
    __syncthreads();  // the previous contents have been used
    load<C, C::size, kDepth>(passing, 0, col, cols, shared.columns.passing);
    load<C, C::size, kDepth>(staying, 0, col, cols, shared.columns.staying);
    __syncthreads();
#pragma unroll
    for (int32_t x = 0; x < kDepth; x += 4) {
      float4 b[4];
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        const int32_t row = thread.staying + C::size / 4 * j;
        b[j] = *reinterpret_cast<const float4*>(&shared.columns.staying[row][x]);
      }
#pragma unroll
      for (int32_t i = 0; i < Thread<C>::kPassing; ++i) {
        const int32_t row = thread.passing + 16 * i;
        const float4 a = *reinterpret_cast<const float4*>(&shared.columns.passing[row][x]);
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) {
          product[i][j] += a.x * b[j].x;
          product[i][j] += a.y * b[j].y;
          product[i][j] += a.z * b[j].z;
          product[i][j] += a.w * b[j].w;
        }
      }
    }
  }
}

// What a thread accumulates: [4 staying rows][columns 4 col4 ... and 64 + 4 col4 ...]
using Sums = float[4][8];

// sums += weights' . rows, over the chunk of passing rows in shared.slice.
template <class C, int32_t kCols>
__device__ void add_products(const BackwardShared<C>& shared, const Thread<C>& thread,
                             int32_t first_row, Sums& sums) {
#pragma unroll 8
  for (int32_t r = 0; r < kDepth; ++r) {
    const float4 w =
        *reinterpret_cast<const float4*>(&shared.weights[first_row + r][4 * thread.row4]);
    const float weight[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int32_t half = 0; half < kCols / 64; ++half) {
      const float4 x =
          *reinterpret_cast<const float4*>(&shared.slice[r][64 * half + 4 * thread.col4]);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        sums[i][4 * half + 0] += weight[i] * x.x;
        sums[i][4 * half + 1] += weight[i] * x.y;
        sums[i][4 * half + 2] += weight[i] * x.z;
        sums[i][4 * half + 3] += weight[i] * x.w;
      }
    }
  }
}

// The same over a whole tile of passing rows, for the slice of their columns that begins at `col`.
template <class C, class Storage>
__device__ void accumulate(BackwardShared<C>& shared, const Thread<C>& thread,
                           const TileRows<Storage>& passing, int32_t col, int32_t cols,
                           Sums& sums) {
  if (col >= cols) return;  // the other gradient has more columns
  for (int32_t row = 0; row < C::size; row += kDepth) {
    __syncthreads();  // weights are written, and the slice has been used
    load<C, kDepth, kSlice>(passing, row, col, cols, shared.slice);
    __syncthreads();
    if (cols - col > 64) {
      add_products<C, 128>(shared, thread, row, sums);
    } else {
      add_products<C, 64>(shared, thread, row, sums);
    }
  }
}

template <class Storage, class C, bool kKeysStay>
struct Mainloop {
  static constexpr int32_t kPassing = Thread<C>::kPassing;
  const BackwardParams& p;
  BackwardShared<C>& shared;
  const Thread<C> thread = this_thread<C>();
  const device::CarefulRule rule = device::CarefulRule::of(device::rule_of(p.sizes));
  const int32_t slice;  // the first column
  Sums first = {};      // dk, or dq
  Sums second = {};     // dv

  // lse2 and delta of the queries of a tile. The barrier in `multiply` comes before their first
  // use; one in or after `accumulate` comes before they are overwritten.
  __device__ void load_queries(const Side& queries, int32_t head_index, int32_t tile) {
    if (threadIdx.x >= C::size) return;
    const int64_t row = int64_t{tile} * C::size + threadIdx.x;
    const bool is_inside = row < queries.num_rows;
    const int64_t at = head_index * p.sizes.q_len + queries.index(row);
    shared.lse2[threadIdx.x] = is_inside ? p.lse2[at] : INFINITY;
    shared.delta[threadIdx.x] = is_inside ? p.delta[at] : 0.f;
  }

  // Writes p to shared.weights and returns ds. Pairs that do not attend get 0 for both, by
  // selection.
  __device__ void weigh(const float (&product)[kPassing][4], int32_t bitmap,
                        float (&ds)[kPassing][4]) {
#pragma unroll
    for (int32_t i = 0; i < kPassing; ++i) {
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        const int32_t passing = thread.passing + 16 * i, staying = thread.staying + C::size / 4 * j;
        const int32_t q = kKeysStay ? passing : staying, k = kKeysStay ? staying : passing;
        const bool attends =
            bitmap == kFull || (p.view.bitmaps[int64_t{bitmap} * C::size + q] >> k & 1);
        float& weight = shared.weights[passing][staying];
        const device::PairGradient pair =
            device::pair_gradient(rule, product[i][j], weight, shared.lse2[q]);
        weight = attends ? pair.p : 0.f;
        ds[i][j] = attends ? pair.ds : 0.f;
      }
    }
  }

  // One tile of pairs.
  __device__ void do_step(const Side& queries, const Side& keys, int32_t q_tile, int32_t k_tile,
                          int32_t bitmap) {
    // Created where they are used: keeping all four would take registers from the sums.
    const auto q = [&] { return queries.tile_rows<C, Storage>(p.q, q_tile); };
    const auto dout = [&] { return queries.tile_rows<C, Storage>(p.dout, q_tile); };
    const auto k = [&] { return keys.tile_rows<C, Storage>(p.k, k_tile); };
    const auto v = [&] { return keys.tile_rows<C, Storage>(p.v, k_tile); };
    float product[kPassing][4], ds[kPassing][4];

    multiply(shared, thread, kKeysStay ? dout() : v(), kKeysStay ? v() : dout(), p.sizes.v_head_dim,
             product);
    // All threads are done with the previous tile. Each reads and writes only its own pairs until
    // the barrier in `accumulate`.
#pragma unroll
    for (int32_t i = 0; i < kPassing; ++i) {
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        const int32_t passing = thread.passing + 16 * i, staying = thread.staying + C::size / 4 * j;
        shared.weights[passing][staying] =
            product[i][j] - shared.delta[kKeysStay ? passing : staying];
      }
    }
    multiply(shared, thread, kKeysStay ? q() : k(), kKeysStay ? k() : q(), p.sizes.head_dim,
             product);
    weigh(product, bitmap, ds);
    if constexpr (kKeysStay) {
      accumulate(shared, thread, dout(), slice, p.sizes.v_head_dim, second);  // dv += p' dout
      __syncthreads();                                                        // p has been used
    }
#pragma unroll
    for (int32_t i = 0; i < kPassing; ++i) {
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        shared.weights[thread.passing + 16 * i][thread.staying + C::size / 4 * j] = ds[i][j];
      }
    }
    accumulate(shared, thread, kKeysStay ? q() : k(), slice, p.sizes.head_dim, first);
  }

  __device__ void store(const Sums& sums, const DeviceTensor& to, float* to_sums, int32_t heads,
                        int64_t length, int32_t cols, const Side& side, int32_t tile) const {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t row = 4 * thread.row4 + i;
      if (row >= side.rows_of(tile, C::size)) continue;
      const auto gradient = device::gradient_row<Storage>(
          to, to_sums, p.found_nonfinite, heads, length, cols, side.batch, side.head,
          side.index(int64_t{tile} * C::size + row));
#pragma unroll
      for (int32_t c = 0; c < 8; ++c) {
        gradient.put(slice + c / 4 * 64 + 4 * thread.col4 + c % 4, sums[i][c]);
      }
    }
  }
};

// Slices of columns that this launch computes.
template <bool kKeysStay>
__host__ __device__ int32_t num_slices(const device::Sizes& sizes) {
  const int32_t cols =
      kKeysStay && sizes.v_head_dim > sizes.head_dim ? sizes.v_head_dim : sizes.head_dim;
  return (cols + kSlice - 1) / kSlice;
}

// One CTA per staying tile of each head (of each kv head when keys stay) and per slice. Lists are
// processed whole, even if view.work splits them: no two CTAs add to the same gradient.
template <class Storage, class C, bool kKeysStay>
__global__ void __launch_bounds__(kThreads<C>, C::ctas)
    gradients(const __grid_constant__ BackwardParams p) {
  __shared__ BackwardShared<C> shared;
  const device::Sizes& sizes = p.sizes;
  const TileView& view = p.view;
  const int32_t slices = num_slices<kKeysStay>(sizes);
  const int32_t tiles = kKeysStay ? view.k_tiles : view.q_tiles, lists = view.classes * tiles;
  const int32_t cta = int32_t(blockIdx.x) / slices;
  const int32_t unit = cta / lists;  // batch entry and kv head, or head
  // With a causal pattern, the last queries and the first keys have the longest lists.
  const int32_t list = kKeysStay ? cta % lists : lists - 1 - cta % lists;
  const int32_t class_index = list / tiles, tile = list % tiles;

  const int32_t heads_per_kv = sizes.heads / sizes.kv_heads;
  const int32_t per_batch = kKeysStay ? sizes.kv_heads : sizes.heads;
  const int32_t batch = unit / per_batch;
  const int32_t kv_head = kKeysStay ? unit % per_batch : unit % per_batch / heads_per_kv;
  const int32_t first_head = kKeysStay ? kv_head * heads_per_kv : unit % per_batch;
  const int32_t num_heads = kKeysStay ? heads_per_kv : 1;

  const ResidueClass residue = view.residues[class_index];
  const Side keys = {residue.first_k, view.stride, residue.num_k, batch, kv_head};
  Side queries = {residue.first_q, view.stride, residue.num_q, batch, first_head};
  if ((kKeysStay ? keys : queries).rows_of(tile, C::size) <= 0) return;

  Mainloop<Storage, C, kKeysStay> mainloop = {
      .p = p, .shared = shared, .slice = int32_t(blockIdx.x) % slices * kSlice};
  for (int32_t i = 0; i < num_heads; ++i) {  // in a fixed order, each with its own list
    queries.head = first_head + i;
    const int32_t head_index = batch * sizes.heads + queries.head;
    const int32_t group = view.group_of[head_index];
    if (group < 0) continue;
    const int64_t at = int64_t{group} * lists + list;
    const TileRun* runs =
        kKeysStay ? view.t_runs + view.t_list_begin[at] : view.runs + view.list_begin[at];
    const int32_t num_runs = kKeysStay ? view.t_list_count[at] : view.list_count[at];
    if constexpr (!kKeysStay) mainloop.load_queries(queries, head_index, tile);
    for (int32_t r = 0; r < num_runs; ++r) {
      const TileRun run = runs[r];
      for (int32_t other = run.tile; other < run.tile + run.count; ++other) {
        if constexpr (kKeysStay) mainloop.load_queries(queries, head_index, other);
        mainloop.do_step(queries, keys, kKeysStay ? other : tile, kKeysStay ? tile : other,
                         run.bitmap);
      }
    }
  }
  if constexpr (kKeysStay) {
    mainloop.store(mainloop.first, p.dk, p.sums.dk, sizes.kv_heads, sizes.k_len, sizes.head_dim,
                   keys, tile);
    mainloop.store(mainloop.second, p.dv, p.sums.dv, sizes.kv_heads, sizes.k_len, sizes.v_head_dim,
                   keys, tile);
  } else {
    mainloop.store(mainloop.first, p.dq, p.sums.dq, sizes.heads, sizes.q_len, sizes.head_dim,
                   queries, tile);
  }
}

}  // namespace keyhole::simple
