// src/kernels/cpu/key_panels.h
// Keys and values of a part of tiles, packed for the forward pass in panels of kPanel keys: first
// the keys, then the values, as the matrix products read them (vector_products.h, amx_products.h).
// If query tiles share their keys with many others, every panel is packed once in advance. If lists
// are narrow, a thread packs what it needs into a small cache: the panels are still in the CPU's
// cache when they are used, and no memory of the size of the tensors is touched.
#pragma once

#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/pack.h"
#include "kernels/cpu/primitives.h"
#include "kernels/cpu/problem.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tile_walk.h"

namespace keyhole::cpu {

// Which slot of a small cache holds which panel; the least recently used one is replaced.
class PanelSlots {
 public:
  explicit PanelSlots(int64_t num_slots = 0) : slots_(size_t(num_slots)) {}

  struct Found {
    int64_t slot;
    bool is_new;  // the slot held something else before
  };
  Found find(int64_t panel) {
    ++clock_;
    int64_t oldest = 0;
    for (int64_t i = 0; i < int64_t(slots_.size()); ++i) {
      Slot& slot = slots_[size_t(i)];
      if (slot.panel == panel) {
        slot.used = clock_;
        return {i, false};
      }
      if (slot.used < slots_[size_t(oldest)].used) oldest = i;
    }
    slots_[size_t(oldest)] = {panel, clock_};
    return {oldest, true};
  }

 private:
  struct Slot {
    int64_t panel = -1, used = 0;
  };
  std::vector<Slot> slots_;
  int64_t clock_ = 0;
};

// The most panels a cache holds, when a panel takes `bytes`: half of a typical L2 cache.
inline int64_t most_slots(int64_t bytes) {
  return std::clamp<int64_t>((int64_t{1} << 20) / bytes, 8, 16);
}

// The fewest slots with which a thread that processes all lists in order finds most panels in its
// cache, packing each panel at most twice. 0 if `most` are not enough. Fewer slots are better: a
// new panel overwrites one that was read a moment ago.
int64_t slots_that_suit(const TileView& view, int64_t most);

// Rows of values, as the matrix product reads them.
template <class T>
struct Values {
  const T* data;
  int64_t count;        // number of rows
  int64_t stride;       // from row to row
  int64_t panel_step;   // from the first of kPanel rows to the next kPanel rows; 0: by stride
  int64_t column_step;  // from one kPanel columns to the next
};

template <class Products>
class KeyPanels {
  using Storage = typename Products::Element;
  using T = typename Products::Packed;

 public:
  KeyPanels(const ForwardArgs& args, const Problem& problem, const Products& products)
      : args_(args), p_(problem), products_(products), caches_(size_t(p_.threads)) {
    const int64_t most = most_slots(panel_size(false) * int64_t(sizeof(T)));
    for (const TileView& view : p_.plan.tiles) slots_.push_back(slots_that_suit(view, most));
  }

  int64_t bytes_per_unit() const {
    int64_t most = 0;
    for (size_t i = 0; i < p_.plan.tiles.size(); ++i) {
      const int64_t panels = ceil_div(RowMap::of_keys(p_.plan.tiles[i]).rows(), kPanel);
      if (slots_[i] == 0) most = std::max(most, panels * panel_size(false));
    }
    return most * int64_t(sizeof(T));
  }

  // Prepares part number `part`, for the units of a wave.
  void begin_part(int64_t part, int64_t first_unit, int64_t num_units) {
    map_ = RowMap::of_keys(p_.plan.tiles[size_t(part)]);
    panels_per_unit_ = ceil_div(map_.rows(), kPanel);
    first_unit_ = first_unit;
    const int64_t num_slots = slots_[size_t(part)];
    is_cached_ = num_slots > 0;
    // Values that are used only a few times are read in place.
    reads_in_place_ =
        is_cached_ && reads_in_place<Storage>(args_.v, map_.stride, primitives<Storage>().lanes);
    panel_size_ = panel_size(reads_in_place_);
    for (Cache& cache : caches_) {
      cache.slots = PanelSlots(num_slots);
      if (is_cached_) cache.panels.reserve(num_slots * panel_size_);
    }
    if (is_cached_) return;
    packed_.reserve(num_units * panels_per_unit_ * panel_size_);
    parallel_for(num_units * panels_per_unit_, p_.threads,
                 [&](int64_t item, int) { pack(item, packed_.data() + item * panel_size_); });
  }

  bool is_cached() const { return is_cached_; }

  // Panel number `panel` of a unit, counted within the wave; valid until the thread asks for
  // another. Adds to `soon` what is likely to be read next.
  const T* keys(int64_t unit, int64_t panel, int thread, Prefetch& soon) const {
    const int64_t number = unit * panels_per_unit_ + panel;
    if (!is_cached_) return packed_.data() + number * panel_size_;
    Cache& cache = caches_[size_t(thread)];
    const auto [slot, is_new] = cache.slots.find(number);
    T* data = cache.panels.data() + slot * panel_size_;
    if (!is_new) return data;
    pack(number, data);
    const auto [k, v] = rows(unit);
    prefetch_packed(map_, k, p_.head_dim, (panel + 1) * kPanel, kPanel, soon);  // lists move on
    if (reads_in_place_) prefetch_packed(map_, v, p_.v_head_dim, panel * kPanel, kPanel, soon);
    return data;
  }
  // Values of the packed rows from `row` on: as many of `count` as are regularly spaced in memory.
  Values<T> values(int64_t unit, int64_t row, int64_t count, int thread) const {
    if constexpr (std::is_same_v<Storage, T>) {
      if (reads_in_place_) {
        const Head head = head_of(p_, first_unit_ + unit, 0);
        const auto v = rows_of<const T>(args_.v, head.batch, head.kv_head);
        const int64_t c = row / map_.per_class, in_class = row % map_.per_class;
        return {v[map_.source(c, in_class)], count, v.stride * map_.stride, 0, kPanel};
      }
    }
    const int64_t in_panel = row % kPanel;
    const bool goes_on = in_panel == 0 && !is_cached_;
    Prefetch nothing;
    const T* panel = keys(unit, row / kPanel, thread, nothing) + products_.keys_size();
    return products_.values_from(panel, in_panel,
                                 goes_on ? count : std::min(count, kPanel - in_panel), panel_size_);
  }

 private:
  struct Cache {
    Scratch<T> panels;
    PanelSlots slots;
  };

  int64_t panel_size(bool has_only_keys) const {
    return products_.keys_size() + (has_only_keys ? 0 : products_.values_size());
  }

  // k and v of a unit.
  std::pair<Rows<const Storage>, Rows<const Storage>> rows(int64_t unit) const {
    const Head head = head_of(p_, first_unit_ + unit, 0);
    return {rows_of<const Storage>(args_.k, head.batch, head.kv_head),
            rows_of<const Storage>(args_.v, head.batch, head.kv_head)};
  }

  void pack(int64_t number, T* to) const {
    const int64_t panel = number % panels_per_unit_;
    const auto [k, v] = rows(number / panels_per_unit_);
    products_.pack_keys(map_, k, panel * kPanel, to);
    if (!reads_in_place_)
      products_.pack_values(map_, v, panel * kPanel, to + products_.keys_size());
  }

  const ForwardArgs& args_;
  const Problem& p_;
  const Products& products_;
  std::vector<int64_t> slots_;  // [parts of tiles]  slots of a cache; 0: all is packed in advance
  mutable std::vector<Cache> caches_;  // [threads]

  // Of the current part.
  RowMap map_ = RowMap::plain(0);
  int64_t panel_size_ = 0, panels_per_unit_ = 0, first_unit_ = 0;
  bool is_cached_ = false, reads_in_place_ = false;
  Scratch<T> packed_;  // [units][panels_per_unit_]
};

}  // namespace keyhole::cpu
