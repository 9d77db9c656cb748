// src/kernels/sm80/backward_queries.cuh
// dq alone, for a fixed order of additions. A CTA keeps its query tile and loops over steps of
// keys; the rows of all products are queries:
//   dq += ds k        p = 2^(factor * q k' - lse2)     ds = p (dout v' - delta)     ' is transposed
// A warp processes one half of the keys of each step. Its ds goes from registers straight into the
// next product. Warps meet only at the end, where the halves are added.
#pragma once

#include "kernels/device/work.cuh"
#include "kernels/sm80/backward_tiles.cuh"
#include "kernels/sm80/list_walk.cuh"

namespace keyhole::sm80 {

using device::BackwardParams;

template <class C>
struct QueriesShape {
  static constexpr int warps = 2 * C::query_warps, threads = 32 * warps;
  static constexpr int warp_q = C::tile_q / C::query_warps, half_k = C::step_k / 2;
  static constexpr int q_blocks = warp_q / 16, k_blocks = half_k / 8, d_blocks = C::head_dim / 8;
  static constexpr int sums = q_blocks * d_blocks * 4;  // of dq, per lane

  static_assert(warp_q % 16 == 0 && half_k % 16 == 0, "terms of a product come in sixteens");
  static_assert(C::tile_k % C::step_k == 0 && half_k <= 64);
  static_assert(C::tile_q % 64 == 0 && C::tile_k % 64 == 0, "bitmaps come in words of 64 columns");
};

template <class C>
struct QueriesShared {
  alignas(128) uint16_t q[C::tile_q][C::head_dim];  // staging buffer of dq at the end
  uint16_t dout[C::tile_q][C::head_dim];  // from here on: one half of dq in fp32 at the end
  uint16_t k[C::stages][C::step_k][C::head_dim], v[C::stages][C::step_k][C::head_dim];
  ListWalk list;
};

template <class T, class C>
struct QueriesMainloop {
  using Shape = QueriesShape<C>;
  static constexpr int kM = Shape::q_blocks, kN = Shape::k_blocks, kD = Shape::d_blocks;
  static_assert(sizeof(QueriesShared<C>) - sizeof(QueriesShared<C>::q) >=
                    4 * Shape::sums * 32 * C::query_warps,
                "one half of dq must fit beside q");
  using Scores = float[kM][kN][4];
  using RowNumbers = float[kM][2];  // of rows 16 m + lane / 4 and + 8

  const BackwardParams& p;
  QueriesShared<C>& shared;
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
  const int half = warp % 2, first_row = warp / 2 * Shape::warp_q;
  RowNumbers lse2 = {}, delta = {};
  float dq[kM][kD][4] = {};

  // first, step, count: the CTA's queries in lse2 and delta
  __device__ __forceinline__ void load_numbers(int64_t first, int64_t step, int count) {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int row = first_row + lane / 4 + 8 * i;
      if (row >= count) continue;
      lse2[i / 2][i % 2] = p.lse2[first + row * step];
      delta[i / 2][i % 2] = p.delta[first + row * step];
    }
  }

  __device__ __forceinline__ void load_bits(uint32_t (&bits)[kM], int32_t bitmap, int key) const {
    constexpr int kWords = C::tile_k / 64;  // of a lane, for 16 queries
    const uint32_t* words = reinterpret_cast<const uint32_t*>(p.view.bitmaps) +
                            int64_t{bitmap} * (C::tile_q / 16 * 32 * kWords) +
                            (first_row / 16 * 32 + lane) * kWords + key / 64;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      bits[m] = bitmap == kFull ? 0 : words[m * 32 * kWords] >> (key % 64 / 2);
    }
  }

  // product = rows . columns', both [..][head_dim].
  __device__ __forceinline__ void multiply_rows(Scores& product, const void* rows,
                                                const void* columns) const {
    using Tile = Pieces<C::head_dim>;
    const Tile left = Tile::by_rows(smem_address(rows), first_row, 0, lane);
    const Tile right = Tile::by_columns(smem_address(columns), half * Shape::half_k, 0, lane);
    multiply<T, C::head_dim, Sum::begin>(
        product, [&](auto& to, int d, int m) { load_matrices(to, left.at(16 * m, 2 * d)); },
        [&](auto& to, int d, int n) { load_matrices(to, right.at(16 * n, 2 * d)); }, Nothing());
  }

  // From q . k and dout . v to ds. Pairs that do not attend get 0, by selection.
  __device__ __forceinline__ void make_ds(Scores& score, Scores& grad, bool is_partial,
                                          const uint32_t (&bits)[kM]) const {
    const Rule rule{p.rule};
#pragma unroll
    for (int i = 0; i < kM * kN * 4; ++i) {
      const int m = i / (4 * kN), n = i / 4 % kN, e = i % 4;
      grad[m][n][e] -= delta[m][e / 2];
    }
#pragma unroll
    for (int i = 0; i < kM * kN * 4; ++i) {
      const int m = i / (4 * kN), n = i / 4 % kN, e = i % 4;
      grad[m][n][e] *= rule.weight_of_bent(score[m][n][e], -lse2[m][e / 2]);
    }
    if (!is_partial) return;
#pragma unroll
    for (int i = 0; i < kM * kN * 4; ++i) {
      const int m = i / (4 * kN), n = i / 4 % kN, e = i % 4;
      const bool attends = (bits[m] & 1u << (4 * n + e)) != 0;
      grad[m][n][e] = attends ? grad[m][n][e] : 0;
    }
  }

  // One step; key: its first key inside the tile.
  __device__ __forceinline__ void do_step(int stage, int32_t bitmap, int key) {
    uint32_t bits[kM];
    load_bits(bits, bitmap, key + half * Shape::half_k);
    Packed<kM, kN> ds16;
    {
      Scores score, grad;
      multiply_rows(score, shared.q, shared.k[stage]);
      multiply_rows(grad, shared.dout, shared.v[stage]);
      make_ds(score, grad, bitmap != kFull, bits);
      pack<T>(grad, ds16);
    }
    const auto right =
        Pieces<C::head_dim>::by_rows(smem_address(shared.k[stage]), half * Shape::half_k, 0, lane);
    multiply<T, Shape::half_k, Sum::go_on>(
        dq, [&](auto& to, int d, int m) { left_of<kM, kN>(to, ds16, d, m); },
        [&](auto& to, int d, int n) { load_matrices_transposed(to, right.at(16 * d, 2 * n)); },
        Nothing());
  }

  // Epilogue: adds the halves, then writes dq through `q` in shared memory, or adds it to `sums`.
  __device__ __forceinline__ bool finish(const TileRows<T>& to, const TileRows<float>& sums) {
    using Tile = Swizzled<C::head_dim>;
    const uint32_t other_half =
        smem_address(shared.dout) + uint32_t((warp / 2 * Shape::sums * 32 + lane) * 4);
    if (half == 1) {
#pragma unroll
      for (int i = 0; i < Shape::sums; ++i) {
        store_shared(other_half + uint32_t(i * 128),
                     __float_as_uint(dq[i / 4 / kD][i / 4 % kD][i % 4]));
      }
    }
    __syncthreads();
    if (half == 0) {
#pragma unroll
      for (int i = 0; i < Shape::sums; i += 2) {
        const int m = i / 4 / kD, n = i / 4 % kD, h = i % 4 / 2;
        const uint32_t at = other_half + uint32_t(i * 128);
        const float first = p.sizes.scale * (dq[m][n][2 * h] + __uint_as_float(load_shared(at)));
        const float second =
            p.sizes.scale * (dq[m][n][2 * h + 1] + __uint_as_float(load_shared(at + 128)));
        const int row = first_row + 16 * m + 8 * h + lane / 4;
        if (sums.first == nullptr) {
          store_shared(smem_address(shared.q) + Tile::offset(row, n) + uint32_t(lane % 4 * 4),
                       Element<T>::pack(first, second));
        } else if (row < sums.count && n * 8 < sums.columns) {
          float* sum = sums.first + row * sums.step + n * 8 + lane % 4 * 2;
          sum[0] += first;
          sum[1] += second;
        }
      }
    }
    if (sums.first != nullptr) return false;
    __syncthreads();
    return store_tile<C::tile_q, C::head_dim, Shape::threads, T>(smem_address(shared.q), to);
  }
};

// One CTA per list of each head, in the order of the work items: longest first. Lists are processed
// whole: if they are split into chunks, the CTA of the first chunk does all of it.
template <class T, class C>
__global__ void __launch_bounds__(QueriesShape<C>::threads, 1)
    backward_queries(const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<QueriesShared<C>*>(memory);
  constexpr int kThreads = QueriesShape<C>::threads;
  const device::Work work = device::my_work(p.sizes, p.view, p.heads_per_section);
  if (work.is_nothing || work.first_tile > 0) return;
  const int64_t stride = p.view.stride;
  const int64_t first_query = int64_t{work.row_tile} * C::tile_q;
  const int count = rows_left(work.residue.num_q, first_query, C::tile_q);
  if (count <= 0) return;
  const int64_t query = work.residue.first_q + stride * first_query;
  const int64_t row = work.head_index * p.sizes.q_len + query;

  QueriesMainloop<T, C> mainloop = {p, shared};
  constexpr int kPieces = C::tile_k / C::step_k;  // steps per tile
  const int32_t num_tiles = count_tiles(work.runs, work.num_runs);
  const auto copy_keys = [&](int32_t step) {
    const int stage = step % C::stages;
    const int64_t tile = shared.list.entry(step / kPieces).tile;
    const int64_t first = tile * C::tile_k + step % kPieces * C::step_k;
    const int64_t key = work.residue.first_k + stride * first;
    const bool is_there = step / kPieces < num_tiles;
    const int num_keys = is_there ? rows_left(work.residue.num_k, first, C::step_k) : 0;
    copy_tile<C::step_k, C::head_dim, kThreads, T>(
        smem_address(shared.k[stage]), {p.k.row<const T>(work.batch, work.kv_head, key),
                                        stride * p.k.row_stride, num_keys, p.sizes.head_dim});
    copy_tile<C::step_k, C::head_dim, kThreads, T>(
        smem_address(shared.v[stage]), {p.v.row<const T>(work.batch, work.kv_head, key),
                                        stride * p.v.row_stride, num_keys, p.sizes.v_head_dim});
    commit_copies();
  };
  if (num_tiles > 0) {
    copy_tile<C::tile_q, C::head_dim, kThreads, T>(
        smem_address(shared.q), {p.q.row<const T>(work.batch, work.head, query),
                                 stride * p.q.row_stride, count, p.sizes.head_dim});
    copy_tile<C::tile_q, C::head_dim, kThreads, T>(
        smem_address(shared.dout), {p.dout.row<const T>(work.batch, work.head, query),
                                    stride * p.dout.row_stride, count, p.sizes.v_head_dim});
    if (threadIdx.x < 32) shared.list.begin(work.runs, work.num_runs, 0);
    __syncthreads();
    copy_keys(0);
    mainloop.load_numbers(row, stride, count);
  }
  for (int32_t step = 0; step < num_tiles * kPieces; ++step) {
    await_copies<0>();
    __syncthreads();
    const int32_t index = step / kPieces;
    if (threadIdx.x == 0 && step % kPieces == 0 && index + 2 < num_tiles) {
      shared.list.find(index + 2);  // two tiles ahead
    }
    if constexpr (C::stages == 2) copy_keys(step + 1);
    mainloop.do_step(step % C::stages, shared.list.entry(index).bitmap, step % kPieces * C::step_k);
    if constexpr (C::stages == 1) {
      __syncthreads();
      copy_keys(step + 1);
    }
  }
  await_copies<0>();
  __syncthreads();  // all of shared memory is free

  const int32_t columns = p.sizes.head_dim;
  const bool is_bad = mainloop.finish(
      {p.dq.row<T>(work.batch, work.head, query), stride * p.dq.row_stride, count, columns},
      {p.sums.dq == nullptr ? nullptr : p.sums.dq + row * columns, stride * columns, count,
       columns});
  if (is_bad) *p.found_nonfinite = 1;
}

}  // namespace keyhole::sm80
