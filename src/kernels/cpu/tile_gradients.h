// src/kernels/cpu/tile_gradients.h
// The backward pass over a part of tiles. A work item is a chunk of key tiles of one kv head,
// followed through the transposed lists: dk and dv of a tile stay with the thread, dq goes to a
// buffer of the chunk; the buffers are then added in a fixed order. Five matrix products a tile.
//   p = exp(s - lse)    ds = p (dout . v - delta)    dv += p' dout    dk += ds' q    dq += ds k
#pragma once

#include <vector>

#include "base/bits.h"
#include "kernels/cpu/chunks.h"
#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/query_rows.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {

template <class Storage>
class TileGradients {
  using T = typename Traits<Storage>::Compute;

 public:
  explicit TileGradients(const GradientRows<Storage>& rows)
      : rows_(rows),
        p_(rows.p),
        simd_(rows.simd),
        q_cols_(rows.q_cols),
        v_cols_(rows.v_cols),
        queries_(rows),
        work_(size_t(p_.threads)) {
    if (p_.plan.tiles.empty()) return;
    for (Work& work : work_) {
      std::fill_n(work.zero.reserve(q_cols_), q_cols_, T(0));
      work.p.reserve(kStripQueries * kScoreStride);
      work.ds.reserve(kStripQueries * kScoreStride);
      work.keys.reserve(p_.head_dim * kPanel);
      work.values.reserve(p_.v_head_dim * kPanel);
      work.key_rows.reserve(RowPanels<T>::size(kPanel, q_cols_));
      work.dk.reserve(kMostKeys * q_cols_);
      work.dv.reserve(kMostKeys * v_cols_);
    }
  }

  int64_t bytes_per_unit() const {
    int64_t most = 0;
    for (const TileView& view : p_.plan.tiles) {
      most = std::max(most, queries_.bytes_per_unit(view));
    }
    return most;
  }

  void follow(const TileView& view) {
    queries_.begin_part(view);
    for (Work& work : work_) work.packed_unit = -1;
    const int64_t most_rows = kBufferBytes / (q_cols_ * int64_t(sizeof(T)));
    const Chunks chunks = chunk_key_tiles(p_, view, rows_.first_unit, rows_.num_units, most_rows);
    dq_buffers_.reserve(chunks.buffer_rows * q_cols_);
    parallel_for(int64_t(chunks.chunks.size()), p_.threads, [&](int64_t item, int thread) {
      const Chunk& chunk = chunks.chunks[size_t(item)];
      for (const QueryRange& range : chunk.queries) {
        std::fill_n(dq_buffers_.data() + range.offset * q_cols_, range.rows() * q_cols_, T(0));
      }
      for (int64_t k_tile = chunk.begin; k_tile < chunk.end; ++k_tile) {
        follow_t_lists(view, chunk, int32_t(k_tile / view.k_tiles), int32_t(k_tile % view.k_tiles),
                       work_[size_t(thread)]);
      }
    });
    add_buffers(RowMap::of_queries(view), chunks);
  }

 private:
  static constexpr int64_t kMostKeys = 64;                     // of the widest tile offered
  static constexpr int64_t kScoreStride = kMostKeys;           // a row of scores of a key tile
  static constexpr int64_t kBufferBytes = int64_t{512} << 20;  // of the dq buffers

  struct Work {
    Scratch<T> zero;          // [q_cols_]  dq of a query that no chunk reaches
    Scratch<T> p, ds;         // [kStripQueries][kScoreStride]
    Scratch<T> dk, dv;        // [kMostKeys][cols]
    Scratch<T> keys, values;  // [cols][kPanel]  transposed, the panel that holds the key tile
    Scratch<T> key_rows;      // [kPanel][q_cols_]  in row panels
    int64_t packed_unit = -1, packed_panel = -1;  // which panel that is
  };

  // A key tile is followed by one thread, so that is who packs it, and when.
  void pack_keys(const RowMap& map, int64_t unit, int64_t panel, Work& work) const {
    if (work.packed_unit == unit && work.packed_panel == panel) return;
    const Head head = rows_.kv_head(unit);
    const auto k = rows_of<const Storage>(rows_.args.k, head.batch, head.kv_head);
    const auto v = rows_of<const Storage>(rows_.args.v, head.batch, head.kv_head);
    pack_columns(simd_, map, k, p_.head_dim, panel * kPanel, work.keys.data());
    pack_columns(simd_, map, v, p_.v_head_dim, panel * kPanel, work.values.data());
    pack_rows(simd_, map, k, p_.head_dim, panel * kPanel, kPanel,
              RowPanels<T>{work.key_rows.data(), kPanel, q_cols_}, 0);
    work.packed_unit = unit;
    work.packed_panel = panel;
  }

  // dk and dv of one key tile, from all heads of the group.
  void follow_t_lists(const TileView& view, const Chunk& chunk, int32_t c, int32_t k_tile,
                      Work& work) const {
    const ResidueClass& residue = view.residues[c];
    const int64_t first = int64_t{k_tile} * view.tile.k;
    const int64_t keys = std::min<int64_t>(view.tile.k, residue.num_k - first);
    if (keys <= 0) return;
    const int64_t packed_key = int64_t{c} * view.k_tiles * view.tile.k + first;
    pack_keys(RowMap::of_keys(view), chunk.unit, packed_key / kPanel, work);
    std::fill_n(work.dk.data(), keys * q_cols_, T(0));
    std::fill_n(work.dv.data(), keys * v_cols_, T(0));
    for (int64_t g = 0; g < p_.group; ++g) {
      const int64_t head = chunk.unit * p_.group + g;
      const int32_t group = view.group_of[rows_.head(head).index(p_)];
      for_each_strip(
          t_list_of(view, group, c, k_tile), view.tile.q, kStripQueries, [&](const Strip& strip) {
            for (const Strip::Piece& piece : strip.pieces()) {
              follow_piece(view, strip, piece, chunk, g, c, packed_key % kPanel, keys, work);
            }
          });
    }
    for (int64_t r = 0; r < keys; ++r) {
      const int64_t key = residue.first_k + view.stride * (first + r);
      rows_.add_key(chunk.unit, key, work.dk.data() + r * q_cols_, work.dv.data() + r * v_cols_);
    }
  }

  // Some neighbouring query rows against one key tile, whose columns begin at `col` of the packed
  // panel: the five products.
  void follow_piece(const TileView& view, const Strip& strip, const Strip::Piece& piece,
                    const Chunk& chunk, int64_t g, int32_t c, int64_t col, int64_t keys,
                    Work& work) const {
    const int64_t rows = std::min(piece.count, view.residues[c].num_q - piece.row);
    const int64_t head = chunk.unit * p_.group + g;
    const MatrixRows<T> q = queries_.q(head, c, piece.row);
    const MatrixRows<T> dout = queries_.dout(head, c, piece.row);
    T *p = work.p.data(), *ds = work.ds.data();

    multiply(q, rows, work.keys.data() + col, view.tile.k, p_.head_dim, p);  // s = q . k
    multiply(dout, rows, work.values.data() + col, view.tile.k, p_.v_head_dim,
             ds);  // dp = dout . v
    score_gradients(view, strip, piece, rows, queries_.lse(head, c, piece.row),
                    queries_.delta(head, c, piece.row), work);
    add_transposed(p, keys, rows, dout, work.dv.data());  // dv += p' dout
    add_transposed(ds, keys, rows, q, work.dk.data());    // dk += ds' q

    const QueryRange& range = chunk.queries[size_t(g)];
    const int64_t row = int64_t{c} * view.q_tiles * view.tile.q + piece.row;  // packed
    const RowPanels<T> key_rows = {work.key_rows.data(), kPanel, q_cols_};
    for (int64_t n = 0; n < key_rows.num_panels(); ++n) {  // dq += ds k
      simd_.gemm(
          {.rows = rows,
           .cols = key_rows.width(n),
           .depth = keys,
           .a = ds,
           .a_stride = kScoreStride,
           .b = key_rows.panel(n) + col * key_rows.stride(),
           .b_stride = key_rows.stride(),
           .c = dq_buffers_.data() + (range.offset + row - range.begin) * q_cols_ + n * kPanel,
           .c_stride = q_cols_,
           .accumulate = true});
    }
  }

  // c = a . b, where b is [depth][kPanel]
  void multiply(const MatrixRows<T>& a, int64_t rows, const T* b, int64_t cols, int64_t depth,
                T* c) const {
    simd_.gemm({.rows = rows,
                .cols = cols,
                .depth = depth,
                .a = a.data,
                .a_stride = a.stride,
                .a_panel = a.panel,
                .b = b,
                .b_stride = kPanel,
                .c = c,
                .c_stride = kScoreStride});
  }
  // c += a' . b, where a is [rows][kScoreStride]
  void add_transposed(const T* a, int64_t keys, int64_t rows, const MatrixRows<T>& b, T* c) const {
    for (int64_t col = 0; col < b.cols; col += kPanel) {
      simd_.gemm({.rows = keys,
                  .cols = std::min(b.cols - col, kPanel),
                  .depth = rows,
                  .a = a,
                  .a_stride = kScoreStride,
                  .b = b.data + col / kPanel * b.panel,
                  .b_stride = b.stride,
                  .c = c + col,
                  .c_stride = b.cols,
                  .accumulate = true,
                  .a_transposed = true});
    }
  }

  // Partial tiles of the piece with their bitmap, what lies between them at once.
  void score_gradients(const TileView& view, const Strip& strip, const Strip::Piece& piece,
                       int64_t rows, const T* lse, const T* delta, Work& work) const {
    const int64_t words = words_per_row(view.tile.k);
    const auto apply = [&](int64_t begin, int64_t end, const uint64_t* bitmap) {
      if (begin >= end) return;
      simd_.score_gradient({.rows = end - begin,
                            .cols = view.tile.k,
                            .scores = work.p.data() + begin * kScoreStride,
                            .dp = work.ds.data() + begin * kScoreStride,
                            .stride = kScoreStride,
                            .lse = lse + begin,
                            .delta = delta + begin,
                            .factor = T(p_.score_factor()),
                            .cap = T(p_.cap_base_2()),
                            .scale = T(p_.scale),
                            .bitmap = bitmap,
                            .bitmap_words = words});
    };
    int64_t done = 0;
    for (const Strip::Partial& partial : strip.partials()) {
      const int64_t begin = partial.col - piece.col;
      if (begin < 0 || begin >= rows) continue;
      const int64_t end = std::min<int64_t>(begin + view.tile.q, rows);
      apply(done, begin, nullptr);
      apply(begin, end, view.bitmaps + partial.bitmap * view.tile.q * words);
      done = end;
    }
    apply(done, rows, nullptr);
  }

  // dq of every row: the buffers of all chunks that reach it, in the order of the chunks.
  void add_buffers(const RowMap& map, const Chunks& chunks) const {
    rows_.for_each_row(rows_.num_heads(), map.rows(), [&](int64_t i, int64_t row, int thread) {
      const int64_t c = row / map.per_class, in_class = row % map.per_class;
      if (in_class >= map.count(c)) return;
      const int64_t unit = i / p_.group, query = map.source(c, in_class);
      T* sum = nullptr;
      for (int64_t n = chunks.first_of_unit[size_t(unit)];
           n < chunks.first_of_unit[size_t(unit + 1)]; ++n) {
        const QueryRange& range = chunks.chunks[size_t(n)].queries[size_t(i % p_.group)];
        if (row < range.begin || row >= range.end) continue;
        T* term = dq_buffers_.data() + (range.offset + row - range.begin) * q_cols_;
        if (sum == nullptr) {
          sum = term;
        } else {
          simd_.add_row(term, q_cols_, sum);
        }
      }
      if (sum == nullptr) sum = work_[size_t(thread)].zero.data();
      rows_.add_query(i, query, sum);
    });
  }

  const GradientRows<Storage>& rows_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  const int64_t q_cols_, v_cols_;
  QueryRows<Storage> queries_;
  std::vector<Work> work_;  // [threads]

  Scratch<T> dq_buffers_;  // [chunks.buffer_rows][q_cols_]
};

}  // namespace keyhole::cpu
