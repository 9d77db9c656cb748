// tests/kernels/hand_plan.h
// Parts of a plan made by asking a predicate about every pair: no planner, no short cut. What the
// kernels' own tests follow, so that they stand or fall without src/plan.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "base/bits.h"
#include "base/int_math.h"
#include "plan/view.h"

namespace keyhole::testing {

using Allows = std::function<bool(int32_t group, int64_t query, int64_t key)>;

class HandTiles {
 public:
  HandTiles(int64_t q_len, int64_t k_len, TileShape tile, int32_t stride, int32_t groups,
            std::vector<int32_t> group_of, const Allows& allows)
      : group_of_(std::move(group_of)) {
    const int64_t offset = ((k_len - q_len) % stride + stride) % stride;
    int64_t most_q = 0, most_k = 0;
    for (int64_t c = 0; c < stride; ++c) {
      const int64_t first_q = (c - offset + stride) % stride;
      residues_.push_back({first_q, std::max<int64_t>(0, ceil_div(q_len - first_q, stride)), c,
                           std::max<int64_t>(0, ceil_div(k_len - c, stride))});
      most_q = std::max(most_q, residues_.back().num_q);
      most_k = std::max(most_k, residues_.back().num_k);
    }
    view_.q_len = q_len;
    view_.k_len = k_len;
    view_.tile = tile;
    view_.stride = view_.classes = stride;
    view_.q_tiles = int32_t(ceil_div(most_q, tile.q));
    view_.k_tiles = int32_t(ceil_div(most_k, tile.k));
    view_.groups = groups;
    make_lists(allows, /*transposed=*/false);
    make_lists(allows, /*transposed=*/true);
    view_.residues = residues_.data();
    view_.group_of = group_of_.data();
    view_.list_begin = list_begin_.data();
    view_.list_count = list_count_.data();
    view_.runs = runs_.data();
    view_.order = order_.data();
    view_.bitmaps = bitmaps_.data();
    view_.num_bitmaps = num_bitmaps_;
    view_.t_list_begin = t_list_begin_.data();
    view_.t_list_count = t_list_count_.data();
    view_.t_runs = t_runs_.data();
  }
  HandTiles(const HandTiles&) = delete;

  const TileView& view() const { return view_; }
  int64_t visited_tiles() const {
    int64_t tiles = 0;
    for (const TileRun& run : runs_) tiles += run.count;
    return tiles;
  }

 private:
  // The bitmap of a tile, or kFull, or -2 when nobody attends.
  int32_t draw(const Allows& allows, int32_t group, int32_t c, int64_t q_tile, int64_t k_tile) {
    const ResidueClass& residue = residues_[size_t(c)];
    BitRows bits(view_.tile.q, view_.tile.k);
    for (int32_t r = 0; r < view_.tile.q; ++r) {
      const int64_t q = q_tile * view_.tile.q + r;
      for (int32_t col = 0; col < view_.tile.k; ++col) {
        const int64_t k = k_tile * view_.tile.k + col;
        if (q < residue.num_q && k < residue.num_k &&
            allows(group, residue.first_q + view_.stride * q, residue.first_k + view_.stride * k)) {
          set_bits(bits.row(r), col, col + 1);
        }
      }
    }
    if (bits.count() == 0) return -2;
    if (bits.count() == int64_t{view_.tile.q} * view_.tile.k) return kFull;
    for (int32_t i = 0; i < num_bitmaps_; ++i) {
      if (std::equal(bits.data().begin(), bits.data().end(),
                     bitmaps_.begin() + int64_t(bits.data().size()) * i)) {
        return i;
      }
    }
    bitmaps_.insert(bitmaps_.end(), bits.data().begin(), bits.data().end());
    return num_bitmaps_++;
  }

  void make_lists(const Allows& allows, bool transposed) {
    auto& begins = transposed ? t_list_begin_ : list_begin_;
    auto& counts = transposed ? t_list_count_ : list_count_;
    auto& runs = transposed ? t_runs_ : runs_;
    const int32_t outer = transposed ? view_.k_tiles : view_.q_tiles;
    const int32_t inner = transposed ? view_.q_tiles : view_.k_tiles;
    for (int32_t group = 0; group < view_.groups; ++group) {
      for (int32_t c = 0; c < view_.classes; ++c) {
        for (int32_t i = 0; i < outer; ++i) {
          const size_t begin = runs.size();
          begins.push_back(int64_t(begin));
          for (int32_t j = 0; j < inner; ++j) {
            const int32_t bitmap =
                transposed ? draw(allows, group, c, j, i) : draw(allows, group, c, i, j);
            if (bitmap == -2) continue;
            TileRun* last = runs.size() > begin ? &runs.back() : nullptr;
            if (bitmap == kFull && last && last->bitmap == kFull && last->tile + last->count == j) {
              ++last->count;
            } else {
              runs.push_back({j, 1, bitmap});
            }
          }
          counts.push_back(int32_t(runs.size() - begin));
          // Any order is an order; the last tile first shows that it is followed.
          if (!transposed) order_.push_back(view_.classes * outer - 1 - (c * outer + i));
        }
      }
    }
  }

  TileView view_ = {};
  int32_t num_bitmaps_ = 0;
  std::vector<ResidueClass> residues_;
  std::vector<int32_t> group_of_, list_count_, t_list_count_, order_;
  std::vector<int64_t> list_begin_, t_list_begin_;
  std::vector<TileRun> runs_, t_runs_;
  std::vector<uint64_t> bitmaps_;
};

class HandGather {
 public:
  HandGather(int64_t q_len, int64_t k_len, int32_t rows_per_list, int32_t groups,
             std::vector<int32_t> group_of, const Allows& allows)
      : group_of_(std::move(group_of)) {
    view_.q_len = q_len;
    view_.k_len = k_len;
    view_.groups = groups;
    view_.rows_per_list = rows_per_list;
    view_.lists = ceil_div(q_len, rows_per_list);
    for (int32_t group = 0; group < groups; ++group) {
      for (int64_t list = 0; list < view_.lists; ++list) {
        list_begin_.push_back(int64_t(keys_.size()));
        for (int64_t k = 0; k < k_len; ++k) {
          if (allows(group, list * rows_per_list, k)) keys_.push_back(int32_t(k));
        }
        keys_.push_back(-1);  // padding
        list_count_.push_back(int32_t(int64_t(keys_.size()) - list_begin_.back()));
      }
      for (int64_t k = 0; k < k_len; ++k) {
        t_list_begin_.push_back(int64_t(t_lists_.size()));
        for (int64_t list = 0; list < view_.lists; ++list) {
          if (allows(group, list * rows_per_list, k)) t_lists_.push_back(int32_t(list));
        }
        t_list_count_.push_back(int32_t(int64_t(t_lists_.size()) - t_list_begin_.back()));
      }
    }
    view_.group_of = group_of_.data();
    view_.list_begin = list_begin_.data();
    view_.list_count = list_count_.data();
    view_.keys = keys_.data();
    view_.t_list_begin = t_list_begin_.data();
    view_.t_list_count = t_list_count_.data();
    view_.t_lists = t_lists_.data();
  }
  HandGather(const HandGather&) = delete;

  const GatherView& view() const { return view_; }

 private:
  GatherView view_ = {};
  std::vector<int32_t> group_of_, list_count_, t_list_count_, keys_, t_lists_;
  std::vector<int64_t> list_begin_, t_list_begin_;
};

}  // namespace keyhole::testing
