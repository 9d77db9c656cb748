// src/api/check_lists.cpp
#include "api/check_lists.h"

#include <limits>
#include <string>

#include "api/check_arguments.h"
#include "base/bits.h"
#include "base/check.h"
#include "base/int_math.h"

namespace keyhole {
namespace {

constexpr int64_t kMostEntries = int64_t{1} << 30;  // per list; also keys

// name: "indices", "tiles", "counts", "bitmap_of".
void check_memory(const char* who, const IndexView& indices, const char* name,
                  const TensorView& q) {
  KEYHOLE_CHECK(indices.device == q.device, who, ": q is ", place_text(q.device), " but ", name,
                " are ", place_text(indices.device),
                "; all tensors of a call must be in one place");
  const int64_t bytes = indices.is_wide ? 8 : 4;
  int64_t last = 0;
  bool is_empty = false;
  for (int d = 0; d < 4; ++d) {
    KEYHOLE_CHECK(indices.shape[d] >= 0, who, ": ", name, " are ", to_string(indices),
                  "; sizes must not be negative");
    KEYHOLE_CHECK(indices.shape[d] <= 1 || indices.strides[d] >= 0, who, ": ", name,
                  " have stride ", indices.strides[d], " in dimension ", d,
                  "; negative strides are not supported, copy them first");
    is_empty = is_empty || indices.shape[d] == 0;
    if (indices.shape[d] <= 1) continue;
    last = checked_add(last, checked_mul(indices.shape[d] - 1, indices.strides[d], name), name);
  }
  checked_mul(checked_add(last, 1, name), bytes, name);
  KEYHOLE_CHECK(is_empty || indices.data != nullptr, who, ": ", name, " are ", to_string(indices),
                " but their data pointer is null");
  KEYHOLE_CHECK(reinterpret_cast<uintptr_t>(indices.data) % uintptr_t(bytes) == 0, who, ": ", name,
                " are not aligned to their element size of ", bytes, " bytes");
}

void check_heads(const char* who, const IndexView& indices, const char* name, const TensorView& q,
                 const TensorView& k) {
  const int64_t batch = q.shape[0], heads = q.shape[1], kv_heads = k.shape[1];
  KEYHOLE_CHECK(indices.shape[0] == batch, who, ": ", name, " are ", to_string(indices),
                "; their batch must be that of q, ", batch);
  const int64_t index_heads = indices.shape[1];
  KEYHOLE_CHECK(index_heads == kv_heads || index_heads == heads || index_heads == 1, who, ": ",
                name, " are ", to_string(indices), "; their heads must be those of k, ", kv_heads,
                ", those of q, ", heads, ", or 1");
  constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();
  KEYHOLE_CHECK(q.shape[2] <= kMostRows && k.shape[2] <= kMostRows, who, ": q has length ",
                q.shape[2], " and k has ", k.shape[2], "; lists of keys take up to ", kMostRows);
  KEYHOLE_CHECK(indices.shape[3] <= kMostEntries, who, ": ", name, " are ", to_string(indices),
                "; a list has at most ", kMostEntries, " entries");
}

// A tensor that goes with `like`: its first three dimensions, and `entries`.
void check_beside(const char* who, const IndexView& indices, const char* name,
                  const IndexView& like, const char* like_name, int64_t entries,
                  const TensorView& q) {
  if (!indices.is_given()) return;
  check_memory(who, indices, name, q);
  for (int d = 0; d < 4; ++d) {
    KEYHOLE_CHECK(indices.shape[d] == (d < 3 ? like.shape[d] : entries), who, ": ", name, " are ",
                  to_string(indices), "; ", like_name, " are ", to_string(like), ": expected [",
                  like.shape[0], ", ", like.shape[1], ", ", like.shape[2], ", ", entries, "]");
  }
}

void check(const char* who, const Plan& plan, const TensorView& q, const TensorView& k) {
  const Shape& shape = plan.shape();
  KEYHOLE_CHECK(q.shape[2] == shape.q_len && k.shape[2] == shape.k_len, who,
                ": the plan was made for ", shape.q_len, " queries and ", shape.k_len,
                " keys but got ", q.shape[2], " and ", k.shape[2],
                "; make it again for these: plan(pattern, ", q.shape[2], ", ", k.shape[2], ")");
  // A plan made for one head of one batch entry serves all heads.
  const bool is_for_all = shape.batch == 1 && shape.heads == 1;
  KEYHOLE_CHECK(is_for_all || (shape.batch == q.shape[0] && shape.heads == q.shape[1]), who,
                ": the plan was made for batch ", shape.batch, " and ", shape.heads,
                " heads but q has batch ", q.shape[0], " and ", q.shape[1],
                " heads; make it again for these, or for batch 1 and one head, which serves all");
}

void check(const char* who, const KeyListView& keys, const TensorView& q, const TensorView& k) {
  const IndexView& indices = keys.indices;
  check_memory(who, indices, "indices", q);
  KEYHOLE_CHECK(indices.rows_per_list >= 1, who, ": rows_per_list is ", indices.rows_per_list,
                "; it must be 1 or more");
  check_heads(who, indices, "indices", q, k);
  const int64_t q_len = q.shape[2], lists = ceil_div(q_len, indices.rows_per_list);
  KEYHOLE_CHECK(indices.shape[2] == lists, who, ": indices are ", to_string(indices), "; q has ",
                q_len, " queries, ", indices.rows_per_list, " of them to a list: expected ", lists,
                " lists");
  check_beside(who, keys.counts, "counts", indices, "indices", 1, q);
  const int64_t entries = std::max<int64_t>(1, indices.shape[3]);
  KEYHOLE_CHECK(keys.keys_per_entry >= 1 && keys.keys_per_entry <= kMostEntries / entries, who,
                ": keys_per_entry is ", keys.keys_per_entry, " and indices are ",
                to_string(indices), "; accepted are 1 to ", kMostEntries / entries,
                ", so that a list has at most ", kMostEntries, " keys");
  KEYHOLE_CHECK(!keys.causal || indices.rows_per_list == 1, who, ": causal lists have ",
                indices.rows_per_list,
                " queries each, which see different keys; give every query a list of its own "
                "(rows_per_list 1), or pass lists of tiles with bitmaps");
}

void check(const char* who, const TileListView& lists, const TensorView& q, const TensorView& k) {
  constexpr int32_t kMostRows = 1024;
  KEYHOLE_CHECK(lists.tile.q >= 1 && lists.tile.k >= 1 && lists.tile.q <= kMostRows &&
                    lists.tile.k <= kMostRows,
                who, ": the lists are of tiles of ", to_string(lists.tile),
                "; accepted are 1x1 to ", kMostRows, "x", kMostRows, ", such as 64x64 or 128x128");
  check_memory(who, lists.tiles, "tiles", q);
  check_heads(who, lists.tiles, "tiles", q, k);
  const int64_t q_tiles = ceil_div(q.shape[2], int64_t{lists.tile.q});
  KEYHOLE_CHECK(lists.tiles.shape[2] == q_tiles, who, ": tiles are ", to_string(lists.tiles),
                "; q has ", q.shape[2], " queries, ", lists.tile.q, " of them to a tile: expected ",
                q_tiles, " lists");
  check_beside(who, lists.counts, "counts", lists.tiles, "tiles", 1, q);
  check_beside(who, lists.bitmap_of, "bitmap_of", lists.tiles, "tiles", lists.tiles.shape[3], q);
  KEYHOLE_CHECK(lists.num_bitmaps >= 0 && (lists.num_bitmaps == 0 || lists.bitmaps != nullptr), who,
                ": the lists have ", lists.num_bitmaps, " bitmaps at address ",
                reinterpret_cast<uintptr_t>(lists.bitmaps),
                "; pass their number and where they are, or 0 for none");
  KEYHOLE_CHECK(reinterpret_cast<uintptr_t>(lists.bitmaps) % 8 == 0, who,
                ": bitmaps are not aligned to 8 bytes");
  constexpr int64_t kMostBitmaps = int64_t{1} << 20;
  KEYHOLE_CHECK(lists.num_bitmaps <= kMostBitmaps, who, ": the lists have ", lists.num_bitmaps,
                " bitmaps; at most ", kMostBitmaps, " are taken");
}

}  // namespace

TensorView memory_of(const IndexView& indices) {
  TensorView memory;
  memory.data = const_cast<void*>(indices.data);
  memory.dtype = indices.is_wide ? DType::f64 : DType::f32;  // the same element size
  memory.rank = indices.is_given() ? 4 : 0;
  std::copy_n(indices.shape, 4, memory.shape);
  std::copy_n(indices.strides, 4, memory.strides);
  memory.device = indices.device;
  return memory;
}

void check_support(const AttentionOptions& options, const TensorView& q) {
  const IndexView& support = options.support;
  if (!support.is_given()) return;
  KEYHOLE_CHECK(!options.normalizer.is_plain_softmax(),
                "attention: support is given, but the normalizer is softmax, which gives every key "
                "weight; leave support out, or pass entmax(alpha) or top_k");
  check_memory("attention", support, "support", q);
  const int64_t* const n = q.shape;
  KEYHOLE_CHECK(!support.is_wide && support.shape[0] == n[0] && support.shape[1] == n[1] &&
                    support.shape[2] == n[2] && support.shape[3] == kSupportKeys,
                "attention: support is ", to_string(support), "; expected int32 [", n[0], ", ",
                n[1], ", ", n[2], ", ", kSupportKeys, "], batch, heads and length of q");
  KEYHOLE_CHECK(support.strides[3] == 1 || n[0] * n[1] * n[2] == 0,
                "attention: support has stride ", support.strides[3],
                " in its last dimension; it must be contiguous there (stride 1)");
  check_output("attention", memory_of(support), "support");
}

void check_lists(const char* who, const Lists& lists, const TensorView& q, const TensorView& k) {
  std::visit([&](const auto& any) { check(who, any, q, k); }, lists.get());
}

std::vector<std::pair<TensorView, const char*>> memory_of(const Lists& lists) {
  if (const auto* keys = std::get_if<KeyListView>(&lists.get())) {
    return {{memory_of(keys->indices), "indices"}, {memory_of(keys->counts), "counts"}};
  }
  if (const auto* tiles = std::get_if<TileListView>(&lists.get())) {
    const int64_t words = int64_t{tiles->tile.q} * words_per_row(tiles->tile.k);
    return {{memory_of(tiles->tiles), "tiles"},
            {memory_of(tiles->counts), "counts"},
            {memory_of(tiles->bitmap_of), "bitmap_of"},
            {TensorView(tiles->bitmaps, DType::f64, {tiles->num_bitmaps, words}), "bitmaps"}};
  }
  return {};
}

}  // namespace keyhole
