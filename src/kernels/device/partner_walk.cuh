// src/kernels/device/partner_walk.cuh
// The keys that a query attends to, or the queries that attend to a key, over all parts of a plan,
// 32 at a time: one per lane. exact_backward.cuh has the slower form, one at a time.
//
//   PartnerWalk<false> walk(plan, layout, head_index, query);
//   for (int32_t key; walk.next(keep, key);) ...     key: -1 where a lane has none
//
// The whole warp calls. keep(partner): whether a lane wants it; asked before anything is read.
#pragma once

#include "kernels/device/exact_backward.cuh"

namespace keyhole::device {

// kTransposed: `index` is a key, and its partners are queries.
template <bool kTransposed>
class PartnerWalk {
 public:
  __device__ PartnerWalk(const DevicePlan& plan, BitmapLayout layout, int32_t head_index,
                         int64_t index)
      : plan_(plan), layout_(layout), head_index_(head_index), index_(index) {}

  // False: there are no more.
  template <class Keep>
  __device__ bool next(Keep keep, int32_t& partner) {
    while (true) {
      if (col_ < cols_) {
        partner = partner_in_tile(keep, col_ + lane());
        col_ += 32;
        if (__any_sync(~0u, partner >= 0)) return true;
      } else if (tiles_left_ > 0) {
        ++tile_;
        --tiles_left_;
        col_ = 0;
      } else if (runs_left_ > 0) {
        run_ = *runs_++;
        --runs_left_;
        tile_ = run_.tile - 1;
        tiles_left_ = run_.count;
      } else if (gather_ != nullptr) {
        if (next_in_lists(keep, partner)) return true;
        gather_ = nullptr;
      } else if (parts_opened_ < plan_.num_tiles) {
        open(plan_.tiles[parts_opened_++]);
      } else if (parts_opened_ < plan_.num_tiles + plan_.num_gathers) {
        open(plan_.gathers[parts_opened_++ - plan_.num_tiles]);
      } else {
        return false;
      }
    }
  }

 private:
  static __device__ int32_t lane() { return int32_t(threadIdx.x % 32); }

  // --- tiles ---

  __device__ void open(const TileView& view) {
    const int32_t group = view.group_of[head_index_];
    const ClassRow place = class_row_of(view, index_, /*is_key=*/kTransposed);
    if (group < 0 || place.class_index < 0) return;
    view_ = &view;
    const ResidueClass residue = view.residues[place.class_index];
    const int32_t rows = kTransposed ? view.tile.k : view.tile.q;
    cols_ = col_ = kTransposed ? view.tile.q : view.tile.k;
    first_ = kTransposed ? residue.first_q : residue.first_k;
    count_ = kTransposed ? residue.num_q : residue.num_k;
    row_ = int32_t(place.row % rows);
    const int64_t tiles_per_class = kTransposed ? view.k_tiles : view.q_tiles;
    const int64_t list =
        (int64_t{group} * view.classes + place.class_index) * tiles_per_class + place.row / rows;
    runs_ = kTransposed ? view.t_runs + view.t_list_begin[list] : view.runs + view.list_begin[list];
    runs_left_ = kTransposed ? view.t_list_count[list] : view.list_count[list];
  }

  template <class Keep>
  __device__ int32_t partner_in_tile(Keep keep, int32_t col) const {
    const int64_t inside = int64_t{tile_} * cols_ + col;
    if (col >= cols_ || inside >= count_) return -1;
    const int64_t partner = first_ + view_->stride * inside;
    if (!keep(partner)) return -1;
    const bool attends =
        layout_ == BitmapLayout::row_major
            ? tile_attends<BitmapLayout::row_major, kTransposed>(*view_, run_.bitmap, row_, col)
            : tile_attends<BitmapLayout::mma, kTransposed>(*view_, run_.bitmap, row_, col);
    return attends ? int32_t(partner) : -1;
  }

  // --- lists of keys ---

  __device__ void open(const GatherView& view) {
    group_ = view.group_of_head(head_index_);
    if (group_ < 0) return;
    gather_ = &view;
    at_ = query_ = query_end_ = 0;
    wanted_ = 0;
  }

  template <class Keep>
  __device__ bool next_in_lists(Keep keep, int32_t& partner) {
    if constexpr (kTransposed) {
      return next_query(keep, partner);
    } else {
      const KeyList list = key_list(*gather_, group_, index_ / gather_->rows_per_list);
      while (at_ < list.count) {
        partner = list.at(uint32_t(at_) + uint32_t(lane()));
        if (partner >= 0 && !keep(int64_t{partner})) partner = -1;
        at_ += 32;
        if (__any_sync(~0u, partner >= 0)) return true;
      }
      return false;
    }
  }

  template <class Keep>
  __device__ bool next_query(Keep keep, int32_t& partner) {
    while (true) {
      if (query_ < query_end_) {
        const int64_t query = query_ + lane();
        partner = query < query_end_ && keep(query) ? int32_t(query) : -1;
        query_ += 32;
        if (query_ >= query_end_ && --mentions_ > 0) query_ = gather_->first_query(list_);
        if (__any_sync(~0u, partner >= 0)) return true;
      } else if (!(gather_->t_list_begin != nullptr ? next_list() : search_list(keep))) {
        return false;
      }
    }
  }
  __device__ void open_list(int64_t list, int32_t mentions) {
    list_ = list;
    mentions_ = mentions;
    query_ = gather_->first_query(list);
    query_end_ = gather_->first_query(list + 1);
  }
  __device__ bool next_list() {
    const int64_t t_list = group_ * gather_->k_len + index_;
    if (at_ >= gather_->t_list_count[t_list]) return false;
    open_list(gather_->t_lists[gather_->t_list_begin[t_list] + at_++], 1);
    return true;
  }
  // Without lists by key, those of the queries that are wanted are searched for it.
  template <class Keep>
  __device__ bool search_list(Keep keep) {
    while (wanted_ == 0) {
      if (at_ >= gather_->lists) return false;
      bool is_wanted = false;
      if (at_ + lane() < gather_->lists) {
        const int64_t end = gather_->first_query(at_ + lane() + 1);
        for (int64_t query = gather_->first_query(at_ + lane()); query < end; ++query) {
          is_wanted = is_wanted || keep(query);
        }
      }
      wanted_ = __ballot_sync(~0u, is_wanted);
      at_ += 32;
    }
    const int64_t list = at_ - 32 + __ffs(int(wanted_)) - 1;
    wanted_ &= wanted_ - 1;
    const KeyList entries = key_list(*gather_, group_, list);
    int32_t mentions = 0;
    for (int32_t i = 0; i < entries.count; i += 32) {
      const bool is_hit = entries.at(uint32_t(i + lane())) == index_;
      mentions += __popc(__ballot_sync(~0u, is_hit));
    }
    if (mentions > 0) open_list(list, mentions);
    return true;
  }

  const DevicePlan& plan_;
  const BitmapLayout layout_;
  const int32_t head_index_;
  const int64_t index_;
  int32_t parts_opened_ = 0;
  // In a part of tiles.
  const TileView* view_ = nullptr;
  const TileRun* runs_ = nullptr;
  TileRun run_ = {};
  int32_t runs_left_ = 0, tiles_left_ = 0, tile_ = 0, cols_ = 0, col_ = 0, row_ = 0;
  int64_t first_ = 0, count_ = 0;
  // In a part of key lists.
  const GatherView* gather_ = nullptr;
  int32_t group_ = 0, mentions_ = 0;
  int64_t at_ = 0, list_ = 0, query_ = 0, query_end_ = 0;
  uint32_t wanted_ = 0;
};

// Partners in full batches, in the order they come.
template <bool kTransposed>
class PartnerBatches {
 public:
  // waiting: [64] in shared memory, of the warp.
  __device__ PartnerBatches(const DevicePlan& plan, BitmapLayout layout, int32_t head_index,
                            int64_t index, int32_t* waiting)
      : walk_(plan, layout, head_index, index), waiting_(waiting) {}

  // The partner at this lane's `place` of the next batch, or -1. False: there are no more.
  template <class Keep>
  __device__ bool next(Keep keep, int32_t place, int32_t& partner) {
    const int32_t lane = int32_t(threadIdx.x % 32);
    int32_t found;
    while (count_ < 32 && !is_done_) {
      if (!walk_.next(keep, found)) {
        is_done_ = true;
        break;
      }
      const uint32_t hits = __ballot_sync(~0u, found >= 0);
      if (found >= 0) waiting_[count_ + __popc(hits & ((1u << lane) - 1))] = found;
      count_ += __popc(hits);
    }
    if (count_ == 0) return false;
    __syncwarp();
    partner = place < count_ ? waiting_[place] : -1;
    const int32_t later = lane + 32 < count_ ? waiting_[lane + 32] : -1;
    __syncwarp();
    if (lane + 32 < count_) waiting_[lane] = later;
    count_ = max(count_ - 32, 0);
    return true;
  }

 private:
  PartnerWalk<kTransposed> walk_;
  int32_t* waiting_;
  int32_t count_ = 0;
  bool is_done_ = false;
};

}  // namespace keyhole::device
