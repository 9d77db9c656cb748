// src/kernels/sm80/backward_keys.cuh
// dk, dv and, unless another launch computes it, dq. A CTA keeps its key tile and loops over steps
// of queries. Scores are transposed (rows are keys), so that their blocks are the left operand of
//   dv += p' dout     dk += ds' q        p  = 2^(factor * k q' - lse2)   ' is transposed
//   dq  = ds k, added to memory          ds = p (v dout' - delta)
// A warp has its own half of the queries in registers. The half of the neighbouring warp, and all
// of ds for dq, come from shared memory. The scale is applied to dk and dq at the end.
//
//   wait, barrier, copy the next step | scores, weights, ds; own half of dv, dk | barrier |
//   dq; other half of dv, dk, while dq goes to memory
#pragma once

#include "kernels/device/work.cuh"
#include "kernels/sm80/backward_dq.cuh"
#include "kernels/sm80/list_walk.cuh"

namespace keyhole::sm80 {

// A step of queries: its first query in the residue class, and whether the step exists.
struct Step {
  int64_t first;
  bool is_there;
};

template <class C>
struct KeysShared {
  alignas(128) uint16_t k[C::step_k][C::head_dim], v[C::step_k][C::head_dim];  // later dk and dv
  uint16_t q[C::stages][C::step_q][C::head_dim], dout[C::stages][C::step_q][C::head_dim];
  uint16_t p[C::step_k][C::step_q], ds[C::step_k][C::step_q];
  float lse2[C::step_q], delta[C::step_q];  // side by side
  // Of the current list; here because registers are full in the mainloop.
  QueryRows rows;
  ListWalk list;
  int32_t num_tiles;
};

// A list of query tiles, or a chunk of one.
struct QueryList {
  const TileRun* runs;
  int32_t num_runs, first_tile, num_tiles;
};

template <class T, class C>
struct KeysMainloop {
  using Shape = KeysShape<C>;
  using QueryTile = Swizzled<C::head_dim>;
  static constexpr int kM = Shape::k_blocks, kN = Shape::q_blocks, kD = Shape::d_blocks;
  static constexpr int kPieces = C::tile_q / C::step_q;  // steps per tile
  using Scores = float[kM][kN][4];

  const BackwardParams& p;
  KeysShared<C>& shared;
  uint32_t thread = threadIdx.x;
  float dk[kM][kD][4] = {}, dv[kM][kD][4] = {};
  const T *q = nullptr,
          *dout = nullptr;  // what this thread copies first, in the class's first step

  __device__ __forceinline__ int lane() const { return int(thread % 32); }
  __device__ __forceinline__ int warp() const { return int(thread / 32); }
  __device__ __forceinline__ int half() const {
    return int(thread / 32 % 2);
  }  // of queries, or of columns
  __device__ __forceinline__ int first_key() const { return int(thread / 64) * Shape::warp_k; }

  // A warp's columns of dk and dv: blocks of 16, alternating between the two halves.
  __device__ __forceinline__ int column_of(int n) const {
    return n / 2 * 32 + half() * 16 + n % 2 * 8;
  }

  // Begins a list that is not empty: sets where the queries of its head are.
  __device__ __forceinline__ void begin(const QueryList& list, int32_t batch, int32_t head,
                                        const ResidueClass& residue, int32_t class_index) {
    const int64_t stride = p.view.stride, query = residue.first_q;
    q = first_chunk<C::head_dim, Shape::threads>(p.q.row<const T>(batch, head, query),
                                                 stride * p.q.row_stride);
    dout = first_chunk<C::head_dim, Shape::threads>(p.dout.row<const T>(batch, head, query),
                                                    stride * p.dout.row_stride);
    if (threadIdx.x < 32) shared.list.begin(list.runs, list.num_runs, list.first_tile);
    if (threadIdx.x == 0) {
      shared.num_tiles = list.num_tiles;
      const int64_t head_index = int64_t{batch} * p.sizes.heads + head;
      shared.rows = {residue.num_q, head_index * p.sizes.q_len + query,
                     (head_index * p.view.classes + class_index) * p.dq_rows_per_class};
    }
    __syncthreads();
  }
  // Starts to copy the query rows of a step; zeros where there are none.
  __device__ __forceinline__ void copy_rows(const Step& step, int stage) {
    const int64_t first = step.first;
    const int count = count_of(step);
    const int64_t q_step = p.view.stride * p.q.row_stride;
    const int64_t dout_step = p.view.stride * p.dout.row_stride;
    copy_share<C::step_q, C::head_dim, Shape::threads>(
        smem_address(shared.q[stage]), q + first * q_step, q_step, count, p.sizes.head_dim, thread);
    copy_share<C::step_q, C::head_dim, Shape::threads>(smem_address(shared.dout[stage]),
                                                       dout + first * dout_step, dout_step, count,
                                                       p.sizes.v_head_dim, thread);
  }
  // The same for lse2 and delta. There may be more threads than numbers.
  __device__ __forceinline__ void copy_numbers(const Step& step) {
    const int number = int(thread), row = number % C::step_q;
    if (Shape::threads > 2 * C::step_q && number >= 2 * C::step_q) return;
    copy_4_bytes_or_zeros(smem_address(shared.lse2) + uint32_t(4 * number),
                          (number < C::step_q ? p.lse2 : p.delta) + shared.rows.first +
                              p.view.stride * (step.first + row),
                          row < count_of(step));
  }
  // Step i of the list; available for the current step and the next one.
  __device__ __forceinline__ Step step_at(int32_t i) const {
    const int64_t tile = shared.list.entry(i / kPieces).tile;
    return {tile * C::tile_q + i % kPieces * C::step_q, i / kPieces < shared.num_tiles};
  }
  // How many queries a step has.
  __device__ __forceinline__ int count_of(const Step& step) const {
    return step.is_there ? rows_left(shared.rows.count, step.first, C::step_q) : 0;
  }

  // The mask bits of this lane's scores. key, query: position of the warp's first score in the
  // tile.
  __device__ __forceinline__ void load_bits(uint32_t (&bits)[kM], int32_t bitmap, int key,
                                            int query) const {
    constexpr int kWords = C::tile_q / 64;  // of a lane, for 16 keys
    static_assert(Shape::half_q <= 64);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(p.view.t_bitmaps) +
                            int64_t{bitmap} * (C::tile_k / 16 * 32 * kWords) +
                            (key / 16 * 32 + lane()) * kWords + query / 64;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      bits[m] = bitmap == kFull ? 0 : words[m * 32 * kWords] >> (query % 64 / 2);
    }
  }

  // s = k q', grad = v dout'. Meanwhile the next step is copied, and s becomes the weight.
  __device__ __forceinline__ void make_weights(int stage, Scores& score, Scores& grad,
                                               int32_t next) {
    using Tile = Pieces<C::head_dim>;
    const Rule rule{p.rule};
    {
      const Tile left = Tile::by_rows(smem_address(shared.k), first_key(), 0, lane());
      const Tile right =
          Tile::by_columns(smem_address(shared.q[stage]), half() * Shape::half_q, 0, lane());
      multiply<T, C::head_dim, Sum::begin>(
          score, [&](auto& to, int d, int m) { load_matrices(to, left.at(16 * m, 2 * d)); },
          [&](auto& to, int d, int n) { load_matrices(to, right.at(16 * n, 2 * d)); },
          [&](int slot) {
            if (C::stages == 2 && slot == 1) copy_rows(step_at(next), 1 - stage);
          });
    }
    // Two weights at a time, after the products of each 16 columns from the third on: by then the
    // last scores are ready.
    constexpr int kTwos = kM * kN * 2, kSlots = C::head_dim / 16 * kN / 2 - 2;
    constexpr int kPerSlot = (kTwos + kSlots - 1) / kSlots;
    const uint32_t lse2_at = own_query(shared.lse2);
    float2 lse2;
    const auto weigh_two = [&](int i) {
      const int n = i / (2 * kM), m = i / 2 % kM, e = i % 2 * 2;
      if (i % (2 * kM) == 0) lse2 = load_shared_floats(lse2_at + uint32_t(n * 32));
      float(&s)[4] = score[m][n];
      s[e] = rule.weight_of_bent(s[e], -lse2.x);
      s[e + 1] = rule.weight_of_bent(s[e + 1], -lse2.y);
    };
    const Tile left = Tile::by_rows(smem_address(shared.v), first_key(), 0, lane());
    const Tile right =
        Tile::by_columns(smem_address(shared.dout[stage]), half() * Shape::half_q, 0, lane());
    multiply<T, C::head_dim, Sum::begin>(
        grad, [&](auto& to, int d, int m) { load_matrices(to, left.at(16 * m, 2 * d)); },
        [&](auto& to, int d, int n) { load_matrices(to, right.at(16 * n, 2 * d)); },
        [&](int slot) {
#pragma unroll
          for (int i = (slot - 2) * kPerSlot; i < (slot - 1) * kPerSlot; ++i) {
            if (i >= 0 && i < kTwos) weigh_two(i);
          }
        });
  }

  // The address of the numbers (lse2 or delta) of this lane's first pair of columns.
  __device__ __forceinline__ uint32_t own_query(const float* numbers) const {
    return smem_address(numbers + half() * Shape::half_q + 2 * (lane() % 4));
  }

  // Turns grad into ds. Pairs that do not attend get 0 for both, by selection.
  __device__ __forceinline__ void make_ds(Scores& weight, Scores& grad, bool is_partial,
                                          const uint32_t (&bits)[kM]) {
    const uint32_t delta_at = own_query(shared.delta);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const float2 delta = load_shared_floats(delta_at + uint32_t(n * 32));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
#pragma unroll
        for (int e = 0; e < 4; ++e) grad[m][n][e] -= e % 2 == 0 ? delta.x : delta.y;
      }
    }
    if (is_partial) {
#pragma unroll
      for (int i = 0; i < kM * kN * 4; ++i) {
        const int m = i / (4 * kN), n = i / 4 % kN, e = i % 4;
        const bool attends = (bits[m] & 1u << (4 * n + e)) != 0;
        weight[m][n][e] = attends ? weight[m][n][e] : 0;
        grad[m][n][e] = attends ? grad[m][n][e] : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kM * kN * 4; ++i) {
      const int m = i / (4 * kN), n = i / 4 % kN, e = i % 4;
      grad[m][n][e] *= weight[m][n][e];
    }
  }

  // Stores p or ds, [key][query], to shared memory.
  __device__ __forceinline__ void share(const Packed<kM, kN>& from, const void* to) const {
    using Tile = Swizzled<C::step_q>;
    const uint32_t smem = smem_address(to) + uint32_t(lane() % 4 * 4);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const uint32_t at = smem + Tile::offset(first_key() + lane() / 4, half() * (kN) + n);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        store_shared(at + uint32_t((16 * m) * Tile::row_bytes), from[m][n][0]);
        store_shared(at + uint32_t((16 * m + 8) * Tile::row_bytes), from[m][n][1]);
      }
    }
  }

  // sum += own . rows, over this warp's half of the queries, whose weights are in registers.
  __device__ __forceinline__ void add_own_half(float (&sum)[kM][kD][4], const Packed<kM, kN>& own,
                                               const void* rows) {
    const auto right = Pieces<C::head_dim>::by_rows(smem_address(rows), half() * Shape::half_q,
                                                    half() * 2, lane());
    multiply<T, Shape::half_q, Sum::go_on>(
        sum, [&](auto& to, int d, int m) { left_of<kM, kN>(to, own, d, m); },
        [&](auto& to, int d, int n) { load_matrices_transposed(to, right.at(16 * d, 4 * n)); },
        Nothing());
  }
  // The same over the other half, whose weights the neighbouring warp has put in shared memory.
  template <class Meanwhile>
  __device__ __forceinline__ void add_other_half(float (&sum)[kM][kD][4], const void* weights,
                                                 const void* rows, Meanwhile meanwhile) {
    const auto left =
        Pieces<C::step_q>::by_rows(smem_address(weights), first_key(), (1 - half()) * kN, lane());
    const auto right = Pieces<C::head_dim>::by_rows(
        smem_address(rows), (1 - half()) * Shape::half_q, half() * 2, lane());
    multiply<T, Shape::half_q, Sum::go_on>(
        sum, [&](auto& to, int d, int m) { load_matrices(to, left.at(16 * m, 2 * d)); },
        [&](auto& to, int d, int n) { load_matrices_transposed(to, right.at(16 * d, 4 * n)); },
        meanwhile);
  }

  // Step i. The next step is copied during this one with two stages, and during dq with one. One
  // thread reads the list two tiles ahead.
  __device__ __forceinline__ void do_step(int32_t i, int key) {
    const int stage = i % C::stages;
    await_copies<0>();
    __syncthreads();
    thread = opaque(thread);
    const int32_t index = i / kPieces, bitmap = shared.list.entry(index).bitmap;
    uint32_t bits[kM];
    load_bits(bits, bitmap, key + first_key(), i % kPieces * C::step_q + half() * Shape::half_q);
    Packed<kM, kN> weight16, ds16;
    {
      Scores weight, grad;
      make_weights(stage, weight, grad, i + 1);
      make_ds(weight, grad, bitmap != kFull, bits);
      pack<T>(weight, weight16);
      pack<T>(grad, ds16);
    }
    share(weight16, shared.p);
    share(ds16, shared.ds);
    add_own_half(dv, weight16, shared.dout[stage]);
    add_own_half(dk, ds16, shared.q[stage]);
    __syncthreads();
    if (thread == 0 && i % kPieces == 0 && index + 2 < shared.num_tiles) {
      shared.list.find(index + 2);
    }
    copy_numbers(step_at(i + 1));
    if constexpr (C::stages == 2) commit_copies();

    const bool with_dq = p.dq_order != DqOrder::by_queries;
    QueryGradients<T, C> dq;
    if (C::stages == 2 && with_dq && p.sizes.head_dim == C::head_dim && p.dq_rows_per_class != 0) {
      constexpr int kSlots = Shape::half_q / 16 * kD / 2;  // of one product
      dq.make(shared.ds, shared.k, thread);
      dq.begin_adding(p, shared.rows, step_at(i).first, thread);
      add_other_half(dv, shared.p, shared.dout[stage],
                     [&](int slot) { dq.template add_some<2 * kSlots>(slot); });
      add_other_half(dk, shared.ds, shared.q[stage],
                     [&](int slot) { dq.template add_some<2 * kSlots>(slot + kSlots); });
      return;
    }
    add_other_half(dv, shared.p, shared.dout[stage], Nothing());
    add_other_half(dk, shared.ds, shared.q[stage], Nothing());
    if constexpr (C::stages == 1) {
      __syncthreads();
      copy_rows(step_at(i + 1), 0);
      commit_copies();
    }
    if (with_dq) {
      dq.make(shared.ds, shared.k, thread);
      dq.add_all(p, shared.rows, step_at(i).first, thread);
    }
  }

  __device__ __forceinline__ void run(int key) {
    copy_rows(step_at(0), 0);
    copy_numbers(step_at(0));
    commit_copies();
    for (int32_t i = 0; i < shared.num_tiles * kPieces; ++i) do_step(i, key);
    await_copies<0>();
    __syncthreads();  // the staging of the queries is free
  }

  // Epilogue: all of dk or dv of this CTA. It is written through `staging` in shared memory, stored
  // in a slot of its own, or added to sums that several CTAs share.
  __device__ __forceinline__ bool finish(const float (&sum)[kM][kD][4], float scale,
                                         const void* staging, const TileRows<T>& to,
                                         const device::KeySums& sums) const {
    using Tile = Swizzled<C::head_dim>;
    const bool is_summed = sums.rows.first != nullptr;
    const int row = first_key() + lane() / 4;
#pragma unroll
    for (int i = 0; i < kM * kD * 2; ++i) {
      const int m = i / (2 * kD), n = i / 2 % kD, h = i % 2;
      const float first = scale * sum[m][n][2 * h], second = scale * sum[m][n][2 * h + 1];
      const int r = row + 16 * m + 8 * h, column = column_of(n);
      if (is_summed) {
        sums.take(r, column, lane() % 4 * 2, first, second);
      } else {
        store_shared(smem_address(staging) + Tile::offset(r, column / 8) + uint32_t(lane() % 4 * 4),
                     Element<T>::pack(first, second));
      }
    }
    if (is_summed) return false;
    __syncthreads();
    return store_tile<C::step_k, C::head_dim, Shape::threads, T>(smem_address(staging), to);
  }
};

// The list of a head, or this CTA's chunk of it.
inline __device__ QueryList list_of(const TileView& view, const device::Work& work,
                                    int32_t head_index, bool is_whole) {
  if (!is_whole) return {work.runs, work.num_runs, work.first_tile, work.num_tiles};
  const int32_t group = view.group_of[head_index];
  if (group < 0) return {nullptr, 0, 0, 0};
  const int64_t list =
      (int64_t{group} * view.classes + work.class_index) * view.k_tiles + work.row_tile;
  const TileRun* runs = view.t_runs + view.t_list_begin[list];
  const int32_t num_runs = view.t_list_count[list];
  return {runs, num_runs, 0, count_tiles(runs, num_runs)};
}

// One CTA per work item and query head. Query heads of one kv head add to the same sums.dk and
// sums.dv.
//
// If a launch over queries computes dq, the order of all additions must be fixed. Then the CTA of
// the first head processes the lists of all heads of its kv head, one after another, and the CTAs
// of the other heads exit at once. Lists are whole then, unless each kv head has one query head.
template <class T, class C>
__global__ void __launch_bounds__(KeysShape<C>::threads, C::ctas_per_sm)
    backward_keys(const __grid_constant__ BackwardParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<KeysShared<C>*>(memory);
  constexpr int kThreads = KeysShape<C>::threads;
  const int64_t stride = p.view.stride;
  const int32_t heads_per_kv = p.sizes.heads / p.sizes.kv_heads;
  const bool follows_group = p.dq_order == DqOrder::by_queries && heads_per_kv > 1;

  for (int part = 0; part < C::tile_k / C::step_k; ++part) {
    // Computed three times instead of kept: the mainloop leaves no registers.
    const auto my_work = [&] {
      return device::my_work<true>(p.sizes, p.view, p.heads_per_section);
    };
    KeysMainloop<T, C> mainloop = {p, shared};
    {
      const device::Work work = my_work();
      if (work.is_nothing || (follows_group && work.head % heads_per_kv != 0)) return;
      if (!follows_group && work.num_tiles == 0 && p.sums.dk != nullptr) return;  // adds nothing
      const device::KeyRows keys = device::key_rows<C::tile_k, C::step_k>(p, work, part);
      if (keys.count <= 0) return;
      if (part > 0) __syncthreads();  // dk and dv of the previous part have left the staging buffer
      copy_tile<C::step_k, C::head_dim, kThreads, T>(
          smem_address(shared.k), keys.of<const T>(p.k, stride, p.sizes.head_dim));
      copy_tile<C::step_k, C::head_dim, kThreads, T>(
          smem_address(shared.v), keys.of<const T>(p.v, stride, p.sizes.v_head_dim));
      commit_copies();  // here: an empty list starts no other copies but must still await these
    }
    for (int32_t i = 0; i < (follows_group ? heads_per_kv : 1); ++i) {
      const device::Work work = my_work();
      const QueryList list = list_of(p.view, work, work.head_index + i, follows_group);
      if (list.num_tiles == 0) continue;
      mainloop.begin(list, work.batch, work.head + i, work.residue, work.class_index);
      mainloop.run(part * C::step_k);
    }
    await_copies<0>();
    __syncthreads();  // k and v are not needed any more: they become the staging buffer
    const device::Work work = my_work();
    const device::KeyRows keys = device::key_rows<C::tile_k, C::step_k>(p, work, part);
    const int head_dim = p.sizes.head_dim, v_head_dim = p.sizes.v_head_dim;
    const bool bad_k =
        mainloop.finish(mainloop.dk, p.sizes.scale, shared.k, keys.of<T>(p.dk, stride, head_dim),
                        device::key_sums<C::tile_k, C::step_k>(p, work, keys, part, p.slots.dk,
                                                               p.sums.dk, head_dim));
    const bool bad_v =
        mainloop.finish(mainloop.dv, 1, shared.v, keys.of<T>(p.dv, stride, v_head_dim),
                        device::key_sums<C::tile_k, C::step_k>(p, work, keys, part, p.slots.dv,
                                                               p.sums.dv, v_head_dim));
    if (bad_k || bad_v) *p.found_nonfinite = 1;
  }
}

}  // namespace keyhole::sm80
