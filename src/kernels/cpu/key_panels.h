// src/kernels/cpu/key_panels.h
// Keys and values of a part of tiles, packed for the forward pass in panels of kPanel keys:
//   keys, transposed, [head_dim][kPanel], then values, [kPanel][v_head_dim] in row panels.
// Where query tiles share their keys with many others, every panel is packed once before; where
// lists are narrow, a thread packs what it needs into a small cache: the panels are then still near
// when they are used, and no memory the size of the tensors is touched.
#pragma once

#include <vector>

#include "kernels/cpu/pack.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {

// How many panels a cache holds, when a panel takes `bytes`: half of a usual second-level cache.
inline int64_t cache_slots(int64_t bytes) {
  return std::clamp<int64_t>((int64_t{1} << 20) / bytes, 8, 32);
}

// Whether a thread that follows all lists in order finds most panels in its cache: packs each panel
// at most twice.
bool suits_a_cache(const TileView& view, int64_t num_slots);

template <class Storage>
class KeyPanels {
  using T = typename Traits<Storage>::Compute;

 public:
  KeyPanels(const ForwardArgs& args, const Problem& problem)
      : args_(args),
        p_(problem),
        simd_(primitives<Storage>()),
        v_cols_(round_up(p_.v_head_dim, simd_.lanes)),
        panel_size_(p_.head_dim * kPanel + RowPanels<T>::size(kPanel, v_cols_)),
        num_slots_(cache_slots(panel_size_ * int64_t(sizeof(T)))),
        caches_(size_t(p_.threads)) {
    for (const TileView& view : p_.plan.tiles)
      uses_cache_.push_back(suits_a_cache(view, num_slots_));
  }

  int64_t bytes_per_unit() const {
    int64_t most = 0;
    for (size_t i = 0; i < p_.plan.tiles.size(); ++i) {
      const int64_t panels = ceil_div(RowMap::of_keys(p_.plan.tiles[i]).rows(), kPanel);
      if (!uses_cache_[i]) most = std::max(most, panels * panel_size_);
    }
    return most * int64_t(sizeof(T));
  }

  // Makes ready for part number `part`, for the units of a wave.
  void begin_part(int64_t part, int64_t first_unit, int64_t num_units) {
    map_ = RowMap::of_keys(p_.plan.tiles[size_t(part)]);
    panels_per_unit_ = ceil_div(map_.rows(), kPanel);
    first_unit_ = first_unit;
    is_cached_ = uses_cache_[size_t(part)];
    for (Cache& cache : caches_) {
      cache.tags.assign(is_cached_ ? size_t(num_slots_) : 0, -1);
      if (is_cached_) cache.panels.reserve(num_slots_ * panel_size_);
    }
    if (is_cached_) return;
    packed_.reserve(num_units * panels_per_unit_ * panel_size_);
    parallel_for(num_units * panels_per_unit_, p_.threads,
                 [&](int64_t item, int) { pack(item, packed_.data() + item * panel_size_); });
  }

  bool is_cached() const { return is_cached_; }
  // From one panel to the next, when they follow one another.
  int64_t panel_size() const { return panel_size_; }

  // Panel number `panel` of a unit, counted within the wave; valid until the thread asks for
  // another.
  const T* keys(int64_t unit, int64_t panel, int thread) const {
    const int64_t number = unit * panels_per_unit_ + panel;
    if (!is_cached_) return packed_.data() + number * panel_size_;
    Cache& cache = caches_[size_t(thread)];
    const int64_t slot = panel % num_slots_;
    T* data = cache.panels.data() + slot * panel_size_;
    if (cache.tags[size_t(slot)] != number) {
      pack(number, data);
      cache.tags[size_t(slot)] = number;
    }
    return data;
  }
  RowPanels<const T> values(int64_t unit, int64_t panel, int thread) const {
    return {keys(unit, panel, thread) + p_.head_dim * kPanel, kPanel, v_cols_};
  }

 private:
  struct Cache {
    Scratch<T> panels;
    std::vector<int64_t> tags;  // [num_slots_]  which panel a slot holds
  };

  void pack(int64_t number, T* to) const {
    const Head head = head_of(p_, first_unit_ + number / panels_per_unit_, 0);
    const int64_t panel = number % panels_per_unit_;
    const auto k = rows_of<const Storage>(args_.k, head.batch, head.kv_head);
    const auto v = rows_of<const Storage>(args_.v, head.batch, head.kv_head);
    pack_columns(simd_, map_, k, p_.head_dim, panel * kPanel, to);
    pack_rows(simd_, map_, v, p_.v_head_dim, panel * kPanel, kPanel,
              RowPanels<T>{to + p_.head_dim * kPanel, kPanel, v_cols_}, 0);
  }

  const ForwardArgs& args_;
  const Problem& p_;
  const Primitives<Storage>& simd_;
  const int64_t v_cols_, panel_size_, num_slots_;
  std::vector<bool> uses_cache_;       // [parts of tiles]
  mutable std::vector<Cache> caches_;  // [threads]

  // Of the part at hand.
  RowMap map_ = RowMap::plain(0);
  int64_t panels_per_unit_ = 0, first_unit_ = 0;
  bool is_cached_ = false;
  Scratch<T> packed_;  // [units][panels_per_unit_]
};

}  // namespace keyhole::cpu
