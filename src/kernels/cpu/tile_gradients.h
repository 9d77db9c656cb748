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
        work_(size_t(p_.threads)) {
    if (p_.plan.tiles.empty()) return;
    for (Work& work : work_) {
      std::fill_n(work.zero.reserve(q_cols_), q_cols_, T(0));
      work.p.reserve(kStripQueries * kScoreStride);
      work.ds.reserve(kStripQueries * kScoreStride);
      work.dk.reserve(kMostKeys * q_cols_);
      work.dv.reserve(kMostKeys * v_cols_);
    }
  }

  int64_t bytes_per_unit() const {
    int64_t most = 0;
    for (const TileView& view : p_.plan.tiles) {
      const Sizes size = sizes_of(view);
      most =
          std::max(most, size.keys + size.values + size.key_rows + p_.group * (size.q + size.dout));
    }
    return most * int64_t(sizeof(T));
  }

  void follow(const TileView& view) {
    pack_tiles(view);
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
    Scratch<T> zero;    // [q_cols_]  dq of a query that no chunk reaches
    Scratch<T> p, ds;   // [kStripQueries][kScoreStride]
    Scratch<T> dk, dv;  // [kMostKeys][cols]
  };
  struct Sizes {
    int64_t keys, values, key_rows, q, dout;  // per unit; the last two per head
  };
  Sizes sizes_of(const TileView& view) const {
    const int64_t k_rows = round_up(RowMap::of_keys(view).rows(), kPanel);
    const int64_t q_rows = RowMap::of_queries(view).rows();
    return {k_rows * p_.head_dim, k_rows * p_.v_head_dim, RowPanels<T>::size(k_rows, q_cols_),
            RowPanels<T>::size(q_rows, q_cols_), RowPanels<T>::size(q_rows, v_cols_)};
  }

  struct UnitPack {
    ColumnPanels<T> keys, values;
    RowPanels<T> key_rows;
  };
  struct HeadPack {
    RowPanels<T> q, dout;
    T *lse, *delta;
  };
  UnitPack unit_pack(int64_t unit) const {
    return {{keys_.data() + unit * size_.keys, p_.head_dim},
            {values_.data() + unit * size_.values, p_.v_head_dim},
            {key_rows_.data() + unit * size_.key_rows, packed_keys_, q_cols_}};
  }
  HeadPack head_pack(int64_t head) const {
    return {{q_.data() + head * size_.q, packed_queries_, q_cols_},
            {dout_.data() + head * size_.dout, packed_queries_, v_cols_},
            lse_.data() + head * packed_queries_,
            delta_.data() + head * packed_queries_};
  }

  void pack_tiles(const TileView& view) {
    size_ = sizes_of(view);
    const RowMap k_map = RowMap::of_keys(view), q_map = RowMap::of_queries(view);
    const int64_t panels = ceil_div(k_map.rows(), kPanel);
    packed_keys_ = panels * kPanel;
    packed_queries_ = q_map.rows();
    keys_.reserve(rows_.num_units * size_.keys);
    values_.reserve(rows_.num_units * size_.values);
    key_rows_.reserve(rows_.num_units * size_.key_rows);
    q_.reserve(rows_.num_heads() * size_.q);
    dout_.reserve(rows_.num_heads() * size_.dout);
    lse_.reserve(rows_.num_heads() * packed_queries_);
    delta_.reserve(rows_.num_heads() * packed_queries_);
    parallel_for(rows_.num_units * panels, p_.threads, [&](int64_t item, int) {
      const int64_t unit = item / panels, panel = item % panels;
      const Head head = rows_.kv_head(unit);
      const UnitPack to = unit_pack(unit);
      const auto k = rows_of<const Storage>(rows_.args.k, head.batch, head.kv_head);
      const auto v = rows_of<const Storage>(rows_.args.v, head.batch, head.kv_head);
      pack_columns(simd_, k_map, k, p_.head_dim, panel * kPanel, to.keys.panel(panel));
      pack_columns(simd_, k_map, v, p_.v_head_dim, panel * kPanel, to.values.panel(panel));
      pack_rows(simd_, k_map, k, p_.head_dim, panel * kPanel, kPanel, to.key_rows, panel * kPanel);
    });
    const int64_t steps = ceil_div(packed_queries_, kPanel);
    parallel_for(rows_.num_heads() * steps, p_.threads, [&](int64_t item, int) {
      const int64_t i = item / steps, begin = item % steps * kPanel;
      const int64_t rows = std::min(kPanel, packed_queries_ - begin);
      const Head head = rows_.head(i);
      const HeadPack to = head_pack(i);
      pack_rows(simd_, q_map, rows_of<const Storage>(rows_.args.q, head.batch, head.head),
                p_.head_dim, begin, rows, to.q, begin);
      pack_rows(simd_, q_map, rows_of<const Storage>(rows_.args.dout, head.batch, head.head),
                p_.v_head_dim, begin, rows, to.dout, begin);
      q_map.for_each_stretch(begin, rows, [&](int64_t offset, int64_t source, int64_t count) {
        for (int64_t r = 0; r < count; ++r) {
          const int64_t query = source + r * q_map.stride;
          to.lse[begin + offset + r] = rows_.lse(i, query);
          to.delta[begin + offset + r] = rows_.delta(i, query);
        }
      });
    });
  }

  // dk and dv of one key tile, from all heads of the group.
  void follow_t_lists(const TileView& view, const Chunk& chunk, int32_t c, int32_t k_tile,
                      Work& work) const {
    const ResidueClass& residue = view.residues[c];
    const int64_t first = int64_t{k_tile} * view.tile.k;
    const int64_t keys = std::min<int64_t>(view.tile.k, residue.num_k - first);
    if (keys <= 0) return;
    std::fill_n(work.dk.data(), keys * q_cols_, T(0));
    std::fill_n(work.dv.data(), keys * v_cols_, T(0));
    for (int64_t g = 0; g < p_.group; ++g) {
      const int64_t head = chunk.unit * p_.group + g;
      const int32_t group = view.group_of[rows_.head(head).index(p_)];
      for_each_strip(t_list_of(view, group, c, k_tile), view.tile.q, kStripQueries,
                     [&](const Strip& strip) {
                       for (const Strip::Piece& piece : strip.pieces()) {
                         follow_piece(view, strip, piece, chunk, g, c, first, keys, work);
                       }
                     });
    }
    for (int64_t r = 0; r < keys; ++r) {
      const int64_t key = residue.first_k + view.stride * (first + r);
      rows_.add_key(chunk.unit, key, work.dk.data() + r * q_cols_, work.dv.data() + r * v_cols_);
    }
  }

  // Some neighbouring query rows against one key tile: the five products.
  void follow_piece(const TileView& view, const Strip& strip, const Strip::Piece& piece,
                    const Chunk& chunk, int64_t g, int32_t c, int64_t first_key, int64_t keys,
                    Work& work) const {
    const int64_t rows = std::min(piece.count, view.residues[c].num_q - piece.row);
    const int64_t row = int64_t{c} * view.q_tiles * view.tile.q + piece.row;  // packed
    const int64_t key = int64_t{c} * view.k_tiles * view.tile.k + first_key;
    const UnitPack unit = unit_pack(chunk.unit);
    const HeadPack head = head_pack(chunk.unit * p_.group + g);
    const QueryRange& range = chunk.queries[size_t(g)];
    T *p = work.p.data(), *ds = work.ds.data();

    multiply_columns(head.q, row, rows, unit.keys, key, view.tile.k, p);        // s = q . k
    multiply_columns(head.dout, row, rows, unit.values, key, view.tile.k, ds);  // dp = dout . v
    score_gradients(view, strip, piece, rows, head.lse + row, head.delta + row, work);
    add_transposed(p, keys, rows, head.dout, row, work.dv.data(), v_cols_);  // dv += p' dout
    add_transposed(ds, keys, rows, head.q, row, work.dk.data(), q_cols_);    // dk += ds' q
    T* dq = dq_buffers_.data() + (range.offset + row - range.begin) * q_cols_;
    for (int64_t n = 0; n < unit.key_rows.num_panels(); ++n) {  // dq += ds k
      simd_.gemm({.rows = rows,
                  .cols = unit.key_rows.width(n),
                  .depth = keys,
                  .a = ds,
                  .a_stride = kScoreStride,
                  .b = unit.key_rows.panel(n) + key * unit.key_rows.stride(),
                  .b_stride = unit.key_rows.stride(),
                  .c = dq + n * kPanel,
                  .c_stride = q_cols_,
                  .accumulate = true});
    }
  }

  // c = a[row ...] . b[key ...]'
  void multiply_columns(const RowPanels<T>& a, int64_t row, int64_t rows, const ColumnPanels<T>& b,
                        int64_t key, int64_t keys, T* c) const {
    simd_.gemm({.rows = rows,
                .cols = keys,
                .depth = b.depth,
                .a = a.row(row),
                .a_stride = a.stride(),
                .a_panel = a.panel_size(),
                .b = b.panel(key / kPanel) + key % kPanel,
                .b_stride = kPanel,
                .c = c,
                .c_stride = kScoreStride});
  }
  // c += a' . b[row ...]
  void add_transposed(const T* a, int64_t keys, int64_t rows, const RowPanels<T>& b, int64_t row,
                      T* c, int64_t c_stride) const {
    for (int64_t n = 0; n < b.num_panels(); ++n) {
      simd_.gemm({.rows = keys,
                  .cols = b.width(n),
                  .depth = rows,
                  .a = a,
                  .a_stride = kScoreStride,
                  .b = b.panel(n) + row * b.stride(),
                  .b_stride = b.stride(),
                  .c = c + n * kPanel,
                  .c_stride = c_stride,
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
  std::vector<Work> work_;  // [threads]

  // Of the part at hand.
  Sizes size_ = {};
  int64_t packed_keys_ = 0, packed_queries_ = 0;
  Scratch<T> keys_, values_, key_rows_;  // [units in wave]
  Scratch<T> q_, dout_, lse_, delta_;    // [heads in wave]
  Scratch<T> dq_buffers_;                // [chunks.buffer_rows][q_cols_]
};

}  // namespace keyhole::cpu
