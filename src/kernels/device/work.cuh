// src/kernels/device/work.cuh
// The work item of a CTA, and the walk over its tiles.
#pragma once

#include "kernels/device/params.h"

namespace keyhole::device {

// CTA number -> (head, rank in longest-first order), section by section. All heads of a section
// process their longest lists before any processes a shorter one, while their keys and values stay
// in the L2 cache.
struct Place {
  int32_t head;  // batch * heads + head
  int32_t item;
};
__device__ inline Place place_of(int64_t cta, int32_t num_heads, int32_t heads_per_section,
                                 int32_t items) {
  const int64_t per_section = int64_t{heads_per_section} * items;
  const int32_t section = int32_t(cta / per_section);
  const int32_t inside = int32_t(cta - section * per_section);
  const int32_t first = section * heads_per_section;
  const int32_t heads = min(heads_per_section, num_heads - first);
  return {first + inside % heads, inside / heads};
}

// A list or a chunk of one, for the CTA that processes it. `kTransposed`: lists by key tile, for
// the backward pass: rows are keys, and the listed tiles are query tiles.
struct Work {
  int32_t batch, head, kv_head;  // head counts within its batch entry
  int32_t head_index;            // batch * heads + head
  int32_t row_tile;              // inside its class
  int32_t class_index;
  int32_t first_tile, num_tiles, slot;
  const TileRun* runs;
  int32_t num_runs;
  ResidueClass residue;
  bool is_nothing;  // padding: the CTA has no work at all
};

// Decodes a work item of a head, in three steps.
__device__ __forceinline__ void decode_head(const Sizes& sizes, int32_t head_index, Work& work) {
  work.head_index = head_index;
  work.batch = head_index / sizes.heads;
  work.head = head_index - work.batch * sizes.heads;
  work.kv_head = sizes.kv_head_of(work.head);
}
template <bool kTransposed>
__device__ __forceinline__ void decode_list(const TileView& view, const WorkItem& item,
                                            Work& work) {
  work.is_nothing = item.list < 0;
  const int32_t list = work.is_nothing ? 0 : item.list;
  const int32_t per_class = kTransposed ? view.k_tiles : view.q_tiles;
  work.class_index = list / per_class;
  work.row_tile = list - work.class_index * per_class;
  work.first_tile = item.first_tile;
  work.num_tiles = item.num_tiles;
  work.slot = item.slot;
  work.runs = (kTransposed ? view.t_runs : view.runs) + item.first_run;
  work.num_runs = item.num_runs;
}
// After decode_list.
__device__ __forceinline__ void decode_class(const TileView& view, Work& work) {
  work.residue = view.stride == 1 ? ResidueClass{0, view.q_len, 0, view.k_len}
                                  : view.residues[work.class_index];
}
template <bool kTransposed = false>
__device__ Work work_of(const Sizes& sizes, const TileView& view, const WorkItem& item,
                        int32_t head_index) {
  Work work;
  decode_head(sizes, head_index, work);
  decode_list<kTransposed>(view, item, work);
  decode_class(view, work);
  return work;
}

// cta: the index of a CTA, or of a group of CTAs that share an item.
template <bool kTransposed = false>
__device__ Work my_work(const Sizes& sizes, const TileView& view, int32_t heads_per_section,
                        int64_t cta = blockIdx.x) {
  const WorkView& dealt = kTransposed ? view.t_work : view.work;
  const Place place = place_of(cta, sizes.num_heads(), heads_per_section, dealt.items_per_group);
  const int32_t lists = view.classes * (kTransposed ? view.k_tiles : view.q_tiles);
  // These loads depend on the loads before them, and the CTA waits for all of them.
  const int32_t group = dealt.is_one_group ? 0 : view.group_of[place.head];
  // A head without lists in this part has as many empty ones: its rows must still be finished.
  const WorkItem item = group >= 0
                            ? dealt.items[int64_t{group} * dealt.items_per_group + place.item]
                            : WorkItem{place.item < lists ? place.item : -1, 0, 0, -1};
  return work_of<kTransposed>(sizes, view, item, place.head);
}

// Steps through the tiles of a work item in the order of its list.
//   for (TileWalk walk(work); walk.is_valid(); walk.next()) use(walk.tile(), walk.bitmap());
class TileWalk {
 public:
  __device__ explicit TileWalk(const Work& work)
      : run_(work.runs), end_(work.runs + work.num_runs), left_(work.num_tiles) {
    int32_t skip = work.first_tile;  // chunks begin inside the list
    for (; run_ < end_; ++run_) {
      current_ = *run_;
      if (skip < current_.count) break;
      skip -= current_.count;
    }
    inside_ = skip;
  }
  __device__ bool is_valid() const { return left_ > 0; }
  __device__ int32_t tile() const { return current_.tile + inside_; }
  __device__ int32_t bitmap() const { return current_.bitmap; }
  __device__ void next() {
    --left_;
    if (++inside_ < current_.count) return;
    inside_ = 0;
    if (++run_ < end_) current_ = *run_;
  }

 private:
  const TileRun *run_, *end_;
  TileRun current_ = {0, 0, kFull};
  int32_t left_, inside_ = 0;
};

// The same from the last tile to the first.
class ReverseTileWalk {
 public:
  __device__ explicit ReverseTileWalk(const Work& work) : run_(work.runs), left_(work.num_tiles) {
    if (left_ == 0) return;
    int32_t inside = work.first_tile + left_ - 1;
    for (; inside >= run_->count; ++run_) inside -= run_->count;
    begin_run();
    tile_ = first_ + inside;
  }
  __device__ bool is_valid() const { return left_ > 0; }
  __device__ int32_t tile() const { return tile_; }
  __device__ int32_t bitmap() const { return bitmap_; }
  __device__ void next() {
    if (--left_ == 0 || --tile_ >= first_) return;
    --run_;
    begin_run();
    tile_ = first_ + run_->count - 1;
  }

 private:
  __device__ void begin_run() {
    first_ = run_->tile;
    bitmap_ = run_->bitmap;
  }
  const TileRun* run_;
  int32_t left_, first_ = 0, tile_ = 0, bitmap_ = kFull;
};

}  // namespace keyhole::device
