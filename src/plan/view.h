// src/plan/view.h
// All that a kernel sees of a plan: plain pointers, passed by value. The plan owns the memory and
// must outlive every launch that uses a view of it. Nothing here depends on CUDA or on patterns.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>

#include "keyhole/plan.h"

namespace keyhole {

struct TileRun {
  int32_t tile;    // the first key tile of the run (in a transposed list: the first query tile)
  int32_t count;   // how many neighbouring tiles it spans; 1 if partial
  int32_t bitmap;  // the bitmap that masks it, or kFull if every pair attends
  bool operator==(const TileRun&) const = default;
};
inline constexpr int32_t kFull = -1;  // tiles in which no pair attends are not listed

// The layout of a partial tile's bits; docs/gpu.md has the picture.
enum class BitmapLayout : uint8_t { row_major, mma };

// The rows of a residue class: positions first, first + stride, ... A plain part has one class of
// stride 1. Queries attend only to keys of their own class.
struct ResidueClass {
  int64_t first_q, num_q;  // query indices first_q + stride * i, i < num_q
  int64_t first_k, num_k;
};

// The work of one CTA: a list, or a chunk of a list that is much longer than others. It includes
// where the runs are, so that a CTA need not look that up.
struct alignas(16) WorkItem {
  int32_t list;        // class * q_tiles + q_tile; -1: nothing
  int32_t first_tile;  // where the chunk begins, counted in tiles over the runs from first_run on
  int32_t num_tiles;
  int32_t slot;           // -1: the whole list; else the slot of its partial result, per head
  int64_t first_run = 0;  // of the list; in shares, where the chunk begins
  int32_t num_runs = 0;   // from there to the end of the list
  int32_t head = -1;      // in shares: batch * heads + head
};
static_assert(sizeof(WorkItem) == 32, "a CTA reads one with two loads");
// A split list: its partial results are in slots [first_slot, first_slot + num_slots).
struct SplitList {
  int32_t list, first_slot, num_slots;
};

// A work item with all that is needed to start it: a kernel has nothing else to look up before its
// first copies.
struct alignas(16) ShareItem {
  WorkItem work;
  TileRun first;  // the rest of the run it begins in; empty if it has no tiles
  int32_t next;   // next item of the same CTA; kLastItem: none
};
static_assert(sizeof(ShareItem) == 48, "read with three loads");
inline constexpr int32_t kLastItem = -1;

// The work items of all heads, assigned to persistent CTAs in advance. CTA c begins with items[c]
// and goes on with its `next`. Only items that have rows, including empty lists. In the order of
// their lists, CTAs may also draw them one by one: those that have begun are then always the first
// ones.
struct Shares {
  const ShareItem* items = nullptr;
  int32_t num_ctas = 0, num_items = 0;
};

// The work of one direction of a part, longest items first. All groups have the same capacity;
// unused places hold items of list -1 (and split lists of 0 slots).
struct WorkView {
  const WorkItem* items = nullptr;    // [groups][items_per_group]
  const SplitList* splits = nullptr;  // [groups][splits_per_group]
  int32_t items_per_group = 0, splits_per_group = 0, slots_per_group = 0;
  bool is_one_group = false;  // every head has the lists of group 0
  Shares shares;              // no CTAs: one CTA per item
};

// The fewest and the most tiles in a list, over all query tiles that have rows. Heads without lists
// count as length 0.
struct ListLengths {
  int32_t fewest = 0, most = 0;
};

// Lists of tiles. Tile (c, i) of the query side is tile number c * q_tiles + i and holds the rows
// i * tile.q ... of class c; likewise for keys. The key tiles in a list of class c count from 0
// inside that class.
struct TileView {
  int64_t q_len, k_len;
  TileShape tile;
  int32_t stride;            // 1, or s: coordinates are residue classes modulo s
  int32_t classes;           // == stride
  int32_t q_tiles, k_tiles;  // tiles per class
  int32_t groups;
  const ResidueClass* residues;  // [classes]
  const int32_t* group_of;       // [batch * q_heads]  equal lists are stored once; -1: no list here
  const int64_t* list_begin;     // [groups * classes * q_tiles]  where each list begins in runs
  const int32_t* list_count;     // [groups * classes * q_tiles]  how many runs it has
  const TileRun* runs;           // ascending tile within a list
  const int32_t*
      order;  // [groups * classes * q_tiles]  per group: its query tiles, longest list first
  const uint64_t* bitmaps;  // [bitmaps][tile.q][words_per_row(tile.k)]  bit set: that pair attends;
                            // bits beyond the ends of the sequences are clear
  int64_t num_bitmaps;
  ListLengths lengths;
  // The same by key tile; null until a backward pass needs it. TileRun::tile counts query tiles of
  // the class.
  const int64_t* t_list_begin;  // [groups * classes * k_tiles]
  const int32_t* t_list_count;
  const TileRun* t_runs;
  // For device kernels: filled by schedule() when a plan is uploaded.
  WorkView work, t_work;
  const uint64_t* t_bitmaps;  // the bitmaps of transposed tiles, unless the layout is row_major

  int64_t list_index(int32_t group, int32_t class_index, int32_t q_tile) const {
    return (int64_t{group} * classes + class_index) * q_tiles + q_tile;
  }
  int64_t t_list_index(int32_t group, int32_t class_index, int32_t k_tile) const {
    return (int64_t{group} * classes + class_index) * k_tiles + k_tile;
  }
};

// A number per list of a table, in memory of the caller.
struct ListCounts {
  const void* numbers = nullptr;  // int32_t, or int64_t; null: every list uses all its entries
  bool is_wide = false;           // int64_t
  int64_t batch_stride = 0, group_stride = 0, list_stride = 0;
};

// Key lists of equal capacity: an index tensor [batch, groups, lists, entries], read in place. An
// entry names keys_per_entry neighbouring keys. One that names none (negative, or beyond k_len) is
// ignored, wherever it stands.
struct KeyTable {
  const void* entries = nullptr;  // int32_t, or int64_t
  bool is_wide = false;           // int64_t
  int32_t heads_per_group = 0;    // neighbouring query heads with the same lists; 0: no table
  int32_t groups_per_batch = 1;
  int32_t count = 0;  // entries of a list
  int64_t batch_stride = 0, group_stride = 0, list_stride = 0, entry_stride = 1;
  int32_t keys_per_entry = 1;
  bool is_causal = false;  // keys after a query are ignored; every query has a list of its own
  ListCounts counts = {};

  constexpr bool is_given() const { return heads_per_group > 0; }
  constexpr int64_t begin_of(int32_t group, int64_t list) const {
    return group / groups_per_batch * batch_stride + group % groups_per_batch * group_stride +
           list * list_stride;
  }
  constexpr int64_t count_at(int32_t group, int64_t list) const {
    return group / groups_per_batch * counts.batch_stride +
           group % groups_per_batch * counts.group_stride + list * counts.list_stride;
  }
  // The most keys of a list, counting padding.
  constexpr int32_t room() const { return count * keys_per_entry; }
  // How many entries k_len keys have, the last one perhaps in part.
  constexpr int64_t entries_of(int64_t k_len) const {
    return (k_len + keys_per_entry - 1) / keys_per_entry;
  }
};

// What the host knows of the key lists of a plan.
struct PlannedKeyLists {
  int32_t longest = 0, mean = 0;  // keys of a list
  // Query heads have the same lists, so many neighbours at a time, from head 0 on; 0: all have.
  int32_t heads_alike = 0;
};

// Lists of keys: query i of a group attends to the keys of list i / rows_per_list. A key of -1 is
// padding; a key that is listed twice counts twice. The lists come from a plan or from a table.
struct GatherView {
  int64_t q_len, k_len;
  int32_t groups;
  int32_t rows_per_list;  // how many neighbouring queries share one list
  int64_t lists;          // per group: ceil(q_len / rows_per_list)
  // From a plan: ascending within a list, then padding.
  const int32_t* group_of;    // [batch * q_heads]; -1: no list here
  const int64_t* list_begin;  // [groups * lists]
  const int32_t* list_count;  // [groups * lists]
  const int32_t* keys;
  // The same by key: the lists that name it, ascending; null until a backward pass needs it.
  const int64_t* t_list_begin;  // [groups * k_len]
  const int32_t* t_list_count;
  const int32_t* t_lists;
  PlannedKeyLists planned = {};
  KeyTable table = {};

  // Where the keys of a list end: behind the last key, or behind the query that it belongs to.
  constexpr int64_t keys_end(int64_t list) const {
    if (!table.is_causal) return k_len;
    const int64_t behind = list + 1 + k_len - q_len;
    return behind < 0 ? 0 : behind < k_len ? behind : k_len;
  }
  constexpr int32_t group_of_head(int64_t head_index) const {
    return table.is_given() ? int32_t(head_index / table.heads_per_group) : group_of[head_index];
  }
  // The most keys of a list, counting padding.
  constexpr int32_t room() const { return table.is_given() ? table.room() : planned.longest; }
  // How many neighbouring query heads of a kv head have the same lists; a divisor of heads_per_kv.
  constexpr int32_t heads_per_list(int32_t heads_per_kv) const {
    return std::gcd(heads_per_kv, table.is_given() ? table.heads_per_group : planned.heads_alike);
  }
  // The queries of a list: [first_query(list), first_query(list + 1)).
  constexpr int64_t first_query(int64_t list) const {
    return list < lists ? list * rows_per_list : q_len;
  }
};

// A plan as kernels see it: disjoint parts, whose results are merged.
struct PlanView {
  std::span<const TileView> tiles;
  std::span<const GatherView> gathers;
};

}  // namespace keyhole
