// src/kernels/cpu/tile_gradients.h
// The backward pass over a part of tiles. A work item is a chunk of key tiles of one kv head,
// processed by its transposed lists. dk and dv of a tile stay with the thread; dq is summed in a
// buffer of the chunk. Buffers of the same queries are then added in a fixed order. Five matrix
// products per tile, which are the matter of `Products` (vector_gradients.h, amx_gradients.h):
//   p = exp(s - lse)    ds = p (dout . v - delta)    dv += p' dout    dk += ds' q    dq += ds k
#pragma once

#include <vector>

#include "base/bits.h"
#include "kernels/cpu/chunks.h"
#include "kernels/cpu/gradient_pieces.h"
#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/query_statistics.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {

template <class Products>
class TileGradients {
  using Storage = typename Products::Element;
  using T = typename Traits<Storage>::Compute;

 public:
  explicit TileGradients(const GradientRows<Storage>& rows)
      : rows_(rows),
        p_(rows.p),
        simd_(rows.simd),
        q_cols_(rows.q_cols),
        statistics_(rows),
        products_(rows),
        work_(size_t(p_.threads)) {
    if (p_.plan.tiles.empty()) return;
    for (Work& work : work_) {
      std::fill_n(work.zero.reserve(kMostQueries * q_cols_), kMostQueries * q_cols_, T(0));
      work.p.reserve(kStripQueries * kScoreStride);
      work.ds.reserve(kStripQueries * kScoreStride);
      products_.reserve(work.operands);
    }
  }

  int64_t bytes_per_unit() const {
    int64_t most = 0;
    for (const TileView& view : p_.plan.tiles) {
      most = std::max(most, statistics_.bytes_per_unit(view) + products_.bytes_per_unit(view));
    }
    return most;
  }

  void follow(const TileView& view) {
    statistics_.begin_part(view);
    products_.begin_part(view);
    for (Work& work : work_) work.packed_unit = -1;
    const int64_t most_rows = kBufferBytes / (q_cols_ * int64_t(sizeof(T)));
    const Chunks chunks = chunk_key_tiles(p_, view, rows_.first_unit, rows_.num_units, most_rows);
    dq_.reserve(chunks.wave_rows * q_cols_);
    parallel_for(int64_t(chunks.chunks.size()), p_.threads, [&](int64_t item, int thread) {
      [[maybe_unused]] const typename Products::Session session;
      follow_chunk(view, chunks.chunks[size_t(item)], work_[size_t(thread)]);
    });
    const int64_t tiles = int64_t{view.classes} * view.q_tiles;
    parallel_for(rows_.num_heads() * tiles, p_.threads, [&](int64_t item, int thread) {
      finish_shared_queries(view, chunks, item / tiles, item % tiles * view.tile.q,
                            work_[size_t(thread)]);
    });
  }

 private:
  static constexpr int64_t kMostQueries = 64;                  // of the largest tile
  static constexpr int64_t kBufferBytes = int64_t{512} << 20;  // of dq_

  struct Work {
    Scratch<T> zero;                       // [kMostQueries][q_cols_]  dq of queries in no chunk
    Scratch<T> p, ds;                      // [kStripQueries][kScoreStride]
    typename Products::Operands operands;  // with the sums of dk and dv
    bool has_sums;                         // if false these are undefined
    Scratch<T> dq;                         // [chunk.rows()][q_cols_]  of a chunk that is alone
    int64_t packed_unit = -1, packed_panel = -1;  // the panel of keys in operands
    Prefetch soon;
  };

  // The buffer in which a chunk sums dq of head g of its group, from a packed row on.
  T* dq_rows(const Chunk& chunk, int64_t g, int64_t row, Work& work) const {
    const QueryRange& range = chunk.queries[size_t(g)];
    T* buffer = chunk.is_alone ? work.dq.data() : dq_.data();
    return buffer + (range.offset + row - range.begin) * q_cols_;
  }

  void follow_chunk(const TileView& view, const Chunk& chunk, Work& work) const {
    if (chunk.is_alone) work.dq.reserve(chunk.rows() * q_cols_);
    for (int64_t g = 0; g < p_.group; ++g) {
      const QueryRange& range = chunk.queries[size_t(g)];
      std::fill_n(dq_rows(chunk, g, range.begin, work), range.rows() * q_cols_, T(0));
    }
    for (int64_t k_tile = chunk.begin; k_tile < chunk.end; ++k_tile) {
      follow_t_lists(view, chunk, int32_t(k_tile / view.k_tiles), int32_t(k_tile % view.k_tiles),
                     work);
    }
    if (!chunk.is_alone) return;
    for (int64_t g = 0; g < p_.group; ++g) {
      const QueryRange& range = chunk.queries[size_t(g)];
      for (int64_t row = range.begin; row < range.end; row += view.tile.q) {
        finish_query_tile(view, chunk.unit * p_.group + g, row, dq_rows(chunk, g, row, work));
      }
    }
  }

  // A key tile is processed by one thread, so that thread packs it, right before its use.
  void pack_keys(const TileView& view, const KeyTile& tile, Work& work) const {
    if (work.packed_unit == tile.unit && work.packed_panel == tile.panel()) return;
    const RowMap map = RowMap::of_keys(view);
    const Head head = rows_.kv_head(tile.unit);
    const auto k = rows_of<const Storage>(rows_.args.k, head.batch, head.kv_head);
    const auto v = rows_of<const Storage>(rows_.args.v, head.batch, head.kv_head);
    products_.pack_keys(map, k, v, tile.panel() * kPanel, work.operands);
    work.packed_unit = tile.unit;
    work.packed_panel = tile.panel();
    prefetch_packed(map, k, p_.head_dim, (tile.panel() + 1) * kPanel, kPanel, work.soon);
    prefetch_packed(map, v, p_.v_head_dim, (tile.panel() + 1) * kPanel, kPanel, work.soon);
  }

  // dk and dv of one key tile, from all heads of the group.
  void follow_t_lists(const TileView& view, const Chunk& chunk, int32_t c, int32_t k_tile,
                      Work& work) const {
    const ResidueClass& residue = view.residues[c];
    const int64_t first = int64_t{k_tile} * view.tile.k;
    const SpacedRows keys = {residue.first_k + view.stride * first, view.stride,
                             std::min<int64_t>(view.tile.k, residue.num_k - first)};
    if (keys.count <= 0) return;
    const int64_t packed_key = int64_t{c} * view.k_tiles * view.tile.k + first;
    const KeyTile tile = {chunk.unit, keys, packed_key, view.tile.k};
    pack_keys(view, tile, work);
    rows_.prefetch_keys(chunk.unit, keys, work.soon);
    work.has_sums = false;
    for (int64_t g = 0; g < p_.group; ++g) {
      const int64_t head = chunk.unit * p_.group + g;
      const int32_t group = view.group_of[rows_.head(head).index(p_)];
      for_each_strip(t_list_of(view, group, c, k_tile), view.tile.q, kStripQueries,
                     [&](const Strip& strip) {
                       for (const Strip::Piece& piece : strip.pieces()) {
                         follow_piece(view, strip, piece, chunk, g, c, tile, work);
                       }
                     });
    }
    const auto [dk, dv] = products_.key_sums(keys.count, work.has_sums, work.operands);
    rows_.add_keys(chunk.unit, keys, dk, dv);
  }

  // Some neighbouring query rows against one key tile: the five products.
  void follow_piece(const TileView& view, const Strip& strip, const Strip::Piece& piece,
                    const Chunk& chunk, int64_t g, int32_t c, const KeyTile& tile,
                    Work& work) const {
    const QueryPiece queries = {chunk.unit * p_.group + g, c, piece.row,
                                std::min(piece.count, view.residues[c].num_q - piece.row)};
    // The next key tile is likely to need as many more queries as it has keys.
    const int64_t left = view.residues[c].num_q - queries.row - queries.rows;
    products_.look_ahead(queries, std::min<int64_t>(view.tile.k, left), work.soon);
    T *p = work.p.data(), *ds = work.ds.data();
    products_.multiply_keys(queries, tile, work.operands, p, work.soon);     // s = q . k
    products_.multiply_values(queries, tile, work.operands, ds, work.soon);  // dp = dout . v
    score_gradients(view, strip, piece, queries, work);
    products_.add_to_keys(queries, tile, work.operands, p, ds, work.has_sums, work.soon);
    work.has_sums = true;
    T* dq = dq_rows(chunk, g, int64_t{c} * view.q_tiles * view.tile.q + piece.row, work);
    products_.add_to_queries(queries, tile, work.operands, ds, dq, work.soon);
  }

  // Partial tiles of the piece use their bitmap; the full tiles between them are processed at once.
  void score_gradients(const TileView& view, const Strip& strip, const Strip::Piece& piece,
                       const QueryPiece& queries, Work& work) const {
    const int64_t rows = queries.rows;
    const T* lse = statistics_.lse(queries.head, queries.c, queries.row);
    const T* delta = statistics_.delta(queries.head, queries.c, queries.row);
    const int64_t words = words_per_row(view.tile.k);
    const auto apply = [&](int64_t begin, int64_t end, const uint64_t* bitmap) {
      if (begin >= end) return;
      ScoreGradient<Storage> gradient = {.rule = p_.rule,
                                         .rows = end - begin,
                                         .cols = view.tile.k,
                                         .products = work.p.data() + begin * kScoreStride,
                                         .dp = work.ds.data() + begin * kScoreStride,
                                         .stride = kScoreStride,
                                         .lse = lse + begin,
                                         .delta = delta + begin,
                                         .bitmap = bitmap,
                                         .bitmap_words = words};
      products_.prepare(gradient, begin, work.operands);
      simd_.score_gradient(gradient);
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

  // dq of the query tile that begins at a packed row, of head i of the wave.
  void finish_query_tile(const TileView& view, int64_t i, int64_t row, const T* dq) const {
    const int64_t per_class = int64_t{view.q_tiles} * view.tile.q, first = row % per_class;
    const ResidueClass& residue = view.residues[row / per_class];
    const int64_t count = std::min<int64_t>(view.tile.q, residue.num_q - first);
    if (count <= 0) return;
    rows_.add_queries(i, {residue.first_q + view.stride * first, view.stride, count}, dq);
  }

  // The same for a tile that several chunks, or none, add to; in the order of the chunks.
  void finish_shared_queries(const TileView& view, const Chunks& chunks, int64_t i, int64_t row,
                             Work& work) const {
    const int64_t g = i % p_.group;
    T* sum = nullptr;
    for (const Chunk& chunk : chunks.of_unit(i / p_.group)) {
      if (!chunk.queries[size_t(g)].has(row)) continue;
      if (chunk.is_alone) return;  // already finished
      T* term = dq_rows(chunk, g, row, work);
      if (sum == nullptr) {
        sum = term;
      } else {
        simd_.add_row(term, view.tile.q * q_cols_, sum);
      }
    }
    finish_query_tile(view, i, row, sum != nullptr ? sum : work.zero.data());
  }

  const GradientRows<Storage>& rows_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  const int64_t q_cols_;
  QueryStatistics<Storage> statistics_;
  Products products_;
  std::vector<Work> work_;  // [threads]

  Scratch<T> dq_;  // [chunks.wave_rows][q_cols_]
};

}  // namespace keyhole::cpu
