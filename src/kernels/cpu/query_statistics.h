// src/kernels/cpu/query_statistics.h
// lse and delta of queries, for a part of tiles and the heads of a wave, in the order of residue
// classes.
#pragma once

#include "kernels/cpu/gradient_rows.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/scratch.h"

namespace keyhole::cpu {

template <class Storage>
class QueryStatistics {
  using T = typename Traits<Storage>::Compute;

 public:
  explicit QueryStatistics(const GradientRows<Storage>& rows) : rows_(rows) {}

  int64_t bytes_per_unit(const TileView& view) const {
    return rows_.p.group * 2 * RowMap::of_queries(view).rows() * int64_t(sizeof(T));
  }

  void begin_part(const TileView& view) {
    map_ = RowMap::of_queries(view);
    lse_.reserve(rows_.num_heads() * map_.rows());
    delta_.reserve(rows_.num_heads() * map_.rows());
    rows_.for_each_block(
        rows_.num_heads(), map_.rows(), [&](int64_t i, int64_t begin, int64_t length, int) {
          map_.for_each_stretch(begin, length, [&](int64_t offset, int64_t source, int64_t count) {
            const int64_t to = i * map_.rows() + begin + offset;
            for (int64_t r = 0; r < count; ++r) {
              lse_[to + r] = rows_.lse(i, source + r * map_.stride);
              delta_[to + r] = rows_.delta(i, source + r * map_.stride);
            }
          });
        });
  }

  // Of class c from row `row` on; head i of the wave.
  const T* lse(int64_t i, int32_t c, int64_t row) const { return lse_.data() + place(i, c, row); }
  const T* delta(int64_t i, int32_t c, int64_t row) const {
    return delta_.data() + place(i, c, row);
  }

 private:
  int64_t place(int64_t i, int32_t c, int64_t row) const {
    return i * map_.rows() + c * map_.per_class + row;
  }

  const GradientRows<Storage>& rows_;
  RowMap map_ = RowMap::plain(0);
  Scratch<T> lse_, delta_;  // [heads in wave]
};

}  // namespace keyhole::cpu
