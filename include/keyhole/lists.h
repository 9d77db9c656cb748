// include/keyhole/lists.h
// What attention follows: lists of key tiles, or lists of keys. Three make them: a plan compiled
// from a pattern, an index tensor of the caller, and tile lists that a kernel filled a moment ago.
// Every function that attends takes any of them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <variant>

#include "keyhole/plan.h"
#include "keyhole/tensor.h"

namespace keyhole {

// A tensor of integers, read where it lies. As an argument of attention: which keys each query
// attends to.
//   [batch, heads, ceil(q_len / rows_per_list), entries]
//
// heads are those of k (the query heads of one kv head share a list), those of q, or 1. Entries are
// keys in any order. A key that is named twice counts twice: its value has twice the weight. -1 is
// padding and may stand anywhere; a list of nothing else is an empty row.
//
// In host memory any other entry is an error. On a GPU it is treated as padding, because an error
// would have to wait for the GPU; AttentionOptions::check_indices waits.
struct IndexView {
  const void* data = nullptr;
  bool is_wide = false;  // int64_t; else int32_t
  int64_t shape[4] = {};
  int64_t strides[4] = {};  // in elements, 0 or more
  Device device = {};
  int64_t rows_per_list = 1;  // neighbouring queries that share a list

  IndexView() = default;
  // Elements follow one another in memory, last dimension fastest.
  IndexView(const int32_t* data, std::initializer_list<int64_t> shape);
  IndexView(const int64_t* data, std::initializer_list<int64_t> shape);

  bool is_given() const { return data != nullptr || shape[0] != 0; }
};

std::string to_string(const IndexView& indices);  // "int32 [1, 2, 2048, 64]"

// Lists of key tiles, of equal capacity. On a GPU nothing of them returns to the host: what kernels
// follow is made on the device, in the order of the stream and in the workspace, so that a
// selection may fill them inside the CUDA graph that follows them.
//
// Kernels have tiles of their own, which must divide these: 128x128 suits every backend, smaller
// ones may leave the call to a slower kernel.
struct TileListView {
  TileShape tile;
  // [batch, heads, ceil(q_len / tile.q), capacity]: key tiles in any order; heads as in IndexView.
  // On a GPU an entry that is no tile of k counts nothing; in host memory only -1 may do so.
  IndexView tiles;
  // Optional, [batch, heads, ceil(q_len / tile.q), 1]: only so many entries of a list count.
  IndexView counts;
  // Optional, shaped as `tiles`: which bitmap masks the tile, -1 where every pair attends.
  IndexView bitmap_of;
  // [num_bitmaps][tile.q][ceil(tile.k / 64)]: bit set, the pair attends. Where the tensors are.
  const uint64_t* bitmaps = nullptr;
  int64_t num_bitmaps = 0;
};

// One of the three.
class Lists {
 public:
  Lists(const Plan& plan) : lists_(plan) {}             // NOLINT: meant to convert
  Lists(const IndexView& indices) : lists_(indices) {}  // NOLINT
  Lists(const TileListView& tiles) : lists_(tiles) {}   // NOLINT
  const std::variant<Plan, IndexView, TileListView>& get() const { return lists_; }

 private:
  std::variant<Plan, IndexView, TileListView> lists_;
};

}  // namespace keyhole
