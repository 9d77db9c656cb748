// include/keyhole/lists.h
// What a query attends to, as lists of key tiles or lists of keys. There are three sources: a plan
// compiled from a pattern, lists of keys in a tensor of the caller, and tile lists that a kernel
// has filled. Every attention function takes any of them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <variant>

#include "keyhole/plan.h"
#include "keyhole/tensor.h"

namespace keyhole {

// A view of a tensor of integers; nothing is copied. As an argument of attention it holds the keys
// each query attends to (KeyListView below gives its entries other meanings).
//   [batch, heads, ceil(q_len / rows_per_list), entries]
//
// heads is kv_heads (the query heads of one kv head share a list), q_heads, or 1. Entries are keys
// in any order. A key that is listed twice counts twice: its value has twice the weight. -1 is
// padding and may stand anywhere; a list of padding alone is an empty row.
//
// Any other entry is an error in host memory. On a GPU it is treated as padding, because an error
// would have to wait for the GPU; with AttentionOptions::check_indices the call waits and throws.
struct IndexView {
  const void* data = nullptr;
  bool is_wide = false;  // int64_t; else int32_t
  int64_t shape[4] = {};
  int64_t strides[4] = {};  // in elements, 0 or more
  Device device = {};
  int64_t rows_per_list = 1;  // neighbouring queries that share a list

  IndexView() = default;
  // Contiguous, last dimension fastest.
  IndexView(const int32_t* data, std::initializer_list<int64_t> shape);
  IndexView(const int64_t* data, std::initializer_list<int64_t> shape);

  bool is_given() const { return data != nullptr || shape[0] != 0; }
};

std::string to_string(const IndexView& indices);  // "int32 [1, 2, 2048, 64]"

// Lists of keys that are more than an index tensor: each of its entries may name several keys, a
// list may end before its room does, and keys after the query may be left out.
struct KeyListView {
  IndexView indices;
  // Optional, [batch, heads, lists, 1]: how many entries of each list are used; the others are
  // never read. On a GPU a count is limited to the entries there are. In host memory another is an
  // error.
  IndexView counts = {};
  // Entry e names the keys e * keys_per_entry to (e + 1) * keys_per_entry - 1, as far as k has
  // them.
  int64_t keys_per_entry = 1;
  // Query i skips the keys after its position, i + k_len - q_len. Every query then has a list of
  // its own: rows_per_list is 1.
  bool causal = false;
};

// Lists of key tiles, all of the same capacity. On a GPU the lists never return to the host: what
// the kernels read is derived from them on the device, in stream order, in the workspace. A
// selection kernel may therefore fill them inside the same CUDA graph.
//
// A kernel's own tile must divide this tile. 128x128 suits every backend; a smaller tile may leave
// the call to a slower kernel.
struct TileListView {
  TileShape tile;
  // [batch, heads, ceil(q_len / tile.q), capacity]: key tiles in any order; heads as in IndexView.
  // On a GPU an entry that is not a tile of k is ignored. In host memory only -1 is.
  IndexView tiles;
  // Optional, [batch, heads, ceil(q_len / tile.q), 1]: how many entries of each list are used.
  IndexView counts;
  // Optional, same shape as `tiles`: the bitmap that masks the tile, -1 for a full tile.
  IndexView bitmap_of;
  // [num_bitmaps][tile.q][ceil(tile.k / 64)], on the device of the tensors. A set bit: the pair
  // attends.
  const uint64_t* bitmaps = nullptr;
  int64_t num_bitmaps = 0;
};

// A plan, lists of keys (an index tensor is one) or tile lists.
class Lists {
 public:
  Lists(const Plan& plan) : lists_(plan) {}  // NOLINT: meant to convert
  Lists(const IndexView& indices) : lists_(KeyListView{.indices = indices}) {}  // NOLINT
  Lists(const KeyListView& keys) : lists_(keys) {}                              // NOLINT
  Lists(const TileListView& tiles) : lists_(tiles) {}                           // NOLINT
  const std::variant<Plan, KeyListView, TileListView>& get() const { return lists_; }

 private:
  std::variant<Plan, KeyListView, TileListView> lists_;
};

}  // namespace keyhole
