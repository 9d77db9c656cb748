// src/kernels/device/cut_lists.cu
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/bitmap.cuh"
#include "kernels/device/check_cuda.h"
#include "kernels/device/cut_lists.h"
#include "kernels/device/grid_loop.cuh"
#include "kernels/device/sort_by_key.h"
#include "kernels/device/work.cuh"

namespace keyhole::device {

// The layout of the scratch memory.
struct CutLists::Arrays {
  int32_t* group_of;  // [batch * heads]
  ResidueClass* residues;
  int64_t* list_begin;  // [groups][q_tiles]
  int32_t* list_count;
  TileRun* runs;  // [groups][q_tiles][runs_per_list]
  uint32_t* bitmaps;
  WorkItem* items;    // [groups][q_tiles]
  ShareItem* shares;  // [batch * heads][q_tiles], in the order of items
  // By key tile.
  TileRun* t_runs;      // [num_pairs]
  uint32_t* t_bitmaps;  // of a layout that is not row-major
  WorkItem* t_items;    // [groups][k_tiles]
  ShareItem* t_shares;
  void* sort;
  int64_t bytes;
};

namespace {

__device__ int64_t index_at(const DeviceIndices& indices, int32_t group, int64_t list,
                            int64_t place) {
  const int64_t at = group / indices.heads * indices.strides[0] +
                     group % indices.heads * indices.strides[1] + list * indices.strides[2] +
                     place * indices.strides[3];
  return indices.is_wide ? static_cast<const int64_t*>(indices.data)[at]
                         : int64_t{static_cast<const int32_t*>(indices.data)[at]};
}

// What the kernels below share.
struct Cut {
  ListSource source;
  int64_t q_len, k_len;
  TileShape tile;
  int32_t groups, q_tiles, k_tiles, down, across, runs_per_list, tail_columns;
  int64_t num_bitmaps, bitmap_words, t_bitmap_words, num_pairs;

  // Order of the bitmaps: the tail of a full tile; the caller's bitmaps, cut into the kernel's
  // tiles; those of them in the last key tile, cut off at the tail.
  __device__ int32_t bitmap_for(int64_t bitmap, int32_t q_tile, int32_t k_tile) const {
    const bool is_tail = tail_columns > 0 && k_tile == k_tiles - 1;
    if (bitmap < 0) return is_tail ? 0 : kFull;
    const int64_t row = bitmap * down + q_tile % down;
    return is_tail ? int32_t(1 + source.num_bitmaps * down * across + row)
                   : int32_t(1 + row * across + k_tile % across);
  }
};

// One entry of a list: a tile of the caller and its bitmap, -1 for a full tile.
struct Entry {
  int64_t tile, bitmap;
  bool is_there;
};
__device__ Entry entry_at(const Cut& cut, int32_t group, int64_t list, int64_t place) {
  const ListSource& source = cut.source;
  int64_t count = source.capacity;
  if (source.counts.data != nullptr) count = min(count, index_at(source.counts, group, list, 0));
  if (place >= count) return {0, 0, false};
  const int64_t tile = index_at(source.tiles, group, list, place);
  const int64_t bitmap =
      source.bitmap_of.data == nullptr ? -1 : index_at(source.bitmap_of, group, list, place);
  // Not tile * across, which may overflow int64: the entries are unchecked.
  const bool is_tile = tile >= 0 && tile <= (cut.k_tiles - 1) / cut.across;
  return {tile, bitmap, is_tile && bitmap >= -1 && bitmap < source.num_bitmaps};
}

__global__ void __launch_bounds__(kLoopThreads)
    fill_groups(const __grid_constant__ Cut cut, int32_t* group_of, ResidueClass* residues,
                int32_t num_heads, int32_t heads_per_group) {
  for_each_index(num_heads,
                 [&](int64_t head) { group_of[head] = int32_t(head) / heads_per_group; });
  if (blockIdx.x == 0 && threadIdx.x == 0) residues[0] = {0, cut.q_len, 0, cut.k_len};
}

// One warp per list: compacts the valid entries and turns each into its runs.
__global__ void __launch_bounds__(kLoopThreads)
    cut_lists(const __grid_constant__ Cut cut, int64_t* list_begin, int32_t* list_count,
              TileRun* runs, WorkItem* items) {
  const int32_t lane = int32_t(threadIdx.x % 32);
  const int64_t lists = int64_t{cut.groups} * cut.q_tiles;
  const int64_t step = int64_t{gridDim.x} * (kLoopThreads / 32);
  for (int64_t list = int64_t{blockIdx.x} * (kLoopThreads / 32) + threadIdx.x / 32; list < lists;
       list += step) {
    const auto group = int32_t(list / cut.q_tiles), q_tile = int32_t(list % cut.q_tiles);
    const int64_t first_run = list * cut.runs_per_list;
    int32_t num_runs = 0, num_tiles = 0;
    for (int64_t first = 0; first < cut.source.capacity; first += 32) {
      const Entry entry = entry_at(cut, group, q_tile / cut.down, first + lane);
      const auto begin = int32_t(entry.tile * cut.across);
      const int32_t tiles = entry.is_there ? min(cut.across, cut.k_tiles - begin) : 0;
      const bool has_tail = tiles > 0 && cut.tail_columns > 0 && begin + tiles == cut.k_tiles;
      // A full tile is one run, and a second one if it has a tail. A masked tile is one run per
      // kernel tile.
      const int32_t full = tiles - int32_t(has_tail);
      const int32_t own = tiles == 0          ? 0
                          : entry.bitmap >= 0 ? tiles
                                              : int32_t(full > 0) + int32_t(has_tail);
      int32_t before = own, all_tiles = tiles;  // inclusive prefix sums over the lanes
#pragma unroll
      for (int32_t distance = 1; distance < 32; distance *= 2) {
        const int32_t runs_below = __shfl_up_sync(~0u, before, distance);
        const int32_t tiles_below = __shfl_up_sync(~0u, all_tiles, distance);
        if (lane >= distance) before += runs_below, all_tiles += tiles_below;
      }
      TileRun* to = runs + first_run + num_runs + before - own;
      if (entry.bitmap >= 0 && tiles > 0) {
        for (int32_t i = 0; i < tiles; ++i) {
          *to++ = {begin + i, 1, cut.bitmap_for(entry.bitmap, q_tile, begin + i)};
        }
      } else {
        if (full > 0) *to++ = {begin, full, kFull};
        if (has_tail) *to = {begin + full, 1, cut.bitmap_for(-1, q_tile, begin + full)};
      }
      num_runs += __shfl_sync(~0u, before, 31);
      num_tiles += __shfl_sync(~0u, all_tiles, 31);
    }
    if (lane != 0) continue;
    list_begin[list] = first_run;
    list_count[list] = num_runs;
    items[int64_t{group} * cut.q_tiles + (cut.q_tiles - 1 - q_tile)] = {
        q_tile, 0, num_tiles, -1, first_run, num_runs, -1};
  }
}

__device__ bool attends(const Cut& cut, int64_t number, int32_t row, int32_t col) {
  const ListSource& source = cut.source;
  const int64_t pieces = source.num_bitmaps * cut.down * cut.across;
  int64_t bitmap = -1;
  int32_t down = 0, across = 0;
  bool is_tail = true;
  if (number > pieces) {
    bitmap = (number - 1 - pieces) / cut.down;
    down = int32_t((number - 1 - pieces) % cut.down);
    across = (cut.k_tiles - 1) % cut.across;
  } else if (number > 0) {
    bitmap = (number - 1) / (cut.down * cut.across);
    down = int32_t((number - 1) / cut.across % cut.down);
    across = int32_t((number - 1) % cut.across);
    is_tail = false;
  }
  if (is_tail && col >= cut.tail_columns) return false;
  if (bitmap < 0) return true;
  const int64_t words = (source.tile.k + 63) / 64;
  const int64_t source_row = bitmap * source.tile.q + down * cut.tile.q + row;
  const int32_t column = across * cut.tile.k + col;
  return source.bitmaps[source_row * words + column / 64] >> (column % 64) & 1;
}

// One thread per 32-bit word.
template <BitmapLayout kLayout, bool kTransposed>
__global__ void __launch_bounds__(kLoopThreads)
    draw_bitmaps(const __grid_constant__ Cut cut, uint32_t* to) {
  const int64_t words = kTransposed ? cut.t_bitmap_words : cut.bitmap_words;
  const int32_t rows = kTransposed ? cut.tile.k : cut.tile.q;
  const int32_t cols = kTransposed ? cut.tile.q : cut.tile.k;
  for_each_index(cut.num_bitmaps * words, [&](int64_t i) {
    const int64_t number = i / words;
    const auto word = int32_t(i - number * words);
    uint32_t bits = 0;
    for (int32_t bit = 0; bit < 32; ++bit) {
      const RowAndCol at = place_of_bit<kLayout>(word, bit, cols);
      if (at.row >= rows || at.col >= cols) continue;
      const bool is_set =
          kTransposed ? attends(cut, number, at.col, at.row) : attends(cut, number, at.row, at.col);
      bits |= uint32_t(is_set) << bit;
    }
    to[i] = bits;
  });
}

// Item n of all heads to CTA n mod num_ctas.
__global__ void __launch_bounds__(kLoopThreads)
    deal_items(const WorkItem* items, int32_t items_per_group, const TileRun* runs,
               int32_t num_heads, int32_t heads_per_group, int32_t heads_per_section,
               int32_t num_ctas, ShareItem* shares) {
  const int64_t all = int64_t{num_heads} * items_per_group;
  for_each_index(all, [&](int64_t n) {
    const Place place = place_of(n, num_heads, heads_per_section, items_per_group);
    const int64_t group = place.head / heads_per_group;
    ShareItem share = {items[group * items_per_group + place.item], {0, 0, kFull}, kLastItem};
    share.work.head = place.head;
    if (share.work.num_tiles > 0) share.first = runs[share.work.first_run];
    if (n + num_ctas < all) share.next = int32_t(n + num_ctas);
    shares[n] = share;
  });
}

// By key tile. Pair p: place p % (capacity * across) of list p / (capacity * across).
struct TilePair {
  int32_t group, q_tile, k_tile, bitmap;
  bool is_there;
};
__device__ TilePair pair_at(const Cut& cut, int64_t pair) {
  const int64_t per_list = cut.source.capacity * cut.across, list = pair / per_list;
  const int64_t inside = pair - list * per_list;
  const auto group = int32_t(list / cut.q_tiles), q_tile = int32_t(list % cut.q_tiles);
  const Entry entry = entry_at(cut, group, q_tile / cut.down, inside / cut.across);
  const auto k_tile = int32_t(entry.tile * cut.across + inside % cut.across);
  const bool is_there = entry.is_there && k_tile < cut.k_tiles;
  return {group, q_tile, k_tile, is_there ? cut.bitmap_for(entry.bitmap, q_tile, k_tile) : 0,
          is_there};
}
__global__ void __launch_bounds__(kLoopThreads)
    pair_tiles(const __grid_constant__ Cut cut, SortByKey::Pairs pairs) {
  for_each_index(cut.num_pairs, [&](int64_t i) {
    const TilePair pair = pair_at(cut, i);
    const int64_t none = int64_t{cut.groups} * cut.k_tiles;
    pairs.keys[i] =
        uint32_t(pair.is_there ? int64_t{pair.group} * cut.k_tiles + pair.k_tile : none);
    pairs.values[i] = int32_t(i);
  });
}
__global__ void __launch_bounds__(kLoopThreads)
    fill_transposed(const __grid_constant__ Cut cut, SortByKey::Sorted sorted, TileRun* t_runs,
                    WorkItem* t_items) {
  for_each_index(cut.num_pairs, [&](int64_t i) {
    const TilePair pair = pair_at(cut, sorted.values[i]);
    if (pair.is_there) t_runs[i] = {pair.q_tile, 1, pair.bitmap};
  });
  for_each_index(int64_t{cut.groups} * cut.k_tiles, [&](int64_t list) {
    const int32_t count = sorted.count[list];
    t_items[list] = {int32_t(list % cut.k_tiles), 0, count, -1, sorted.begin[list], count, -1};
  });
}

SortByKey sort_of(int32_t groups, int32_t k_tiles, int64_t num_pairs) {
  const int64_t keys = int64_t{groups} * k_tiles;
  KEYHOLE_CHECK(num_pairs <= INT32_MAX && keys < UINT32_MAX,
                "attention: this backward pass sorts tile lists by key tile, with room for ",
                num_pairs, " tiles over ", keys, " key tiles of all heads; at most ", INT32_MAX,
                " tiles can be sorted: split the batch, or give the lists less capacity");
  return {num_pairs, keys};
}

}  // namespace

CutLists::CutLists(const ListSource& source, const ListTarget& target)
    : source_(source), target_(target) {
  const TileShape& tile = target.tile;
  sizes_.groups = narrow(source.batch * source.heads, "attention: heads of the tile lists");
  sizes_.q_tiles = narrow(ceil_div(target.q_len, tile.q), "attention: query tiles");
  sizes_.k_tiles = narrow(ceil_div(target.k_len, tile.k), "attention: key tiles");
  sizes_.down = source.tile.q / tile.q;
  sizes_.across = source.tile.k / tile.k;
  sizes_.tail_columns = int32_t(target.k_len % tile.k);
  const int64_t runs_per_entry =
      source.bitmap_of.data != nullptr ? sizes_.across : std::min(2, sizes_.across);
  sizes_.runs_per_list = narrow(source.capacity * runs_per_entry, "attention: runs of a tile list");
  sizes_.num_bitmaps = 1 + source.num_bitmaps * sizes_.down * (sizes_.across + 1);
  const bool is_mma = target.layout == BitmapLayout::mma;
  sizes_.bitmap_words =
      is_mma ? mma_words(tile.q, tile.k) : int64_t{tile.q} * ((tile.k + 63) / 64) * 2;
  sizes_.t_bitmap_words = is_mma ? mma_words(tile.k, tile.q) : 0;
  sizes_.num_pairs = checked_mul(int64_t{sizes_.groups} * sizes_.q_tiles,
                                 source.capacity * sizes_.across, "attention: tiles of all lists");
  narrow(int64_t{target.batch} * target.heads * std::max(sizes_.q_tiles, sizes_.k_tiles),
         "attention: work items of a call; split the batch");
  bytes_ = arrays(nullptr).bytes;
}

CutLists::Arrays CutLists::arrays(void* memory) const {
  Arrays a{};
  const auto take = [&]<class Element>(Element*& pointer, int64_t count) {
    pointer = reinterpret_cast<Element*>(static_cast<char*>(memory) + a.bytes);
    a.bytes = checked_add(a.bytes,
                          round_up(checked_mul(count, int64_t(sizeof(Element)), "workspace"), 256),
                          "workspace");
  };
  const int64_t num_heads = int64_t{target_.batch} * target_.heads;
  const int64_t lists = int64_t{sizes_.groups} * sizes_.q_tiles;
  const int64_t t_lists = int64_t{sizes_.groups} * sizes_.k_tiles;
  take(a.group_of, num_heads);
  take(a.residues, 1);
  take(a.list_begin, lists);
  take(a.list_count, lists);
  take(a.runs, lists * sizes_.runs_per_list);
  take(a.bitmaps, sizes_.num_bitmaps * sizes_.bitmap_words);
  take(a.items, lists);
  if (!target_.with_transposed) {
    take(a.shares, target_.num_ctas > 0 ? num_heads * sizes_.q_tiles : 0);
    return a;
  }
  take(a.t_runs, sizes_.num_pairs);
  take(a.t_bitmaps, sizes_.num_bitmaps * sizes_.t_bitmap_words);
  take(a.t_items, t_lists);
  take(a.t_shares, target_.num_ctas > 0 ? num_heads * sizes_.k_tiles : 0);
  char* sort = nullptr;
  take(sort, sort_of(sizes_.groups, sizes_.k_tiles, sizes_.num_pairs).bytes());
  a.sort = sort;
  return a;
}

TileView CutLists::view(void* memory) const {
  const Arrays a = arrays(memory);
  const int64_t num_heads = int64_t{target_.batch} * target_.heads;
  const auto work_of = [&](const WorkItem* items, int32_t per_group, const ShareItem* shares,
                           bool is_dealt) {
    WorkView work;
    work.items = items;
    work.items_per_group = per_group;
    work.is_one_group = sizes_.groups == 1;
    if (is_dealt && target_.num_ctas > 0) {
      const int64_t all = num_heads * per_group;
      work.shares = {shares, int32_t(std::min<int64_t>(target_.num_ctas, all)), int32_t(all)};
    }
    return work;
  };
  TileView view{};
  view.q_len = target_.q_len;
  view.k_len = target_.k_len;
  view.tile = target_.tile;
  view.stride = view.classes = 1;
  view.q_tiles = sizes_.q_tiles;
  view.k_tiles = sizes_.k_tiles;
  view.groups = sizes_.groups;
  view.residues = a.residues;
  view.group_of = a.group_of;
  view.list_begin = a.list_begin;
  view.list_count = a.list_count;
  view.runs = a.runs;
  view.bitmaps = reinterpret_cast<const uint64_t*>(a.bitmaps);
  view.num_bitmaps = sizes_.num_bitmaps;
  view.lengths = {0, int32_t(std::min<int64_t>(source_.capacity * sizes_.across, INT32_MAX))};
  view.work = work_of(a.items, sizes_.q_tiles, a.shares, !target_.with_transposed);
  if (!target_.with_transposed) return view;
  const SortByKey sort = sort_of(sizes_.groups, sizes_.k_tiles, sizes_.num_pairs);
  view.t_list_begin = sort.begin(a.sort);
  view.t_list_count = sort.count(a.sort);
  view.t_runs = a.t_runs;
  view.t_bitmaps = reinterpret_cast<const uint64_t*>(a.t_bitmaps);
  view.t_work = work_of(a.t_items, sizes_.k_tiles, a.t_shares, true);
  return view;
}

void CutLists::queue(void* memory, cudaStream_t stream) const {
  const Arrays a = arrays(memory);
  const Cut cut = {source_,
                   target_.q_len,
                   target_.k_len,
                   target_.tile,
                   sizes_.groups,
                   sizes_.q_tiles,
                   sizes_.k_tiles,
                   sizes_.down,
                   sizes_.across,
                   sizes_.runs_per_list,
                   sizes_.tail_columns,
                   sizes_.num_bitmaps,
                   sizes_.bitmap_words,
                   sizes_.t_bitmap_words,
                   sizes_.num_pairs};
  const int32_t num_heads = target_.batch * target_.heads;
  const auto heads_per_group = int32_t(std::max<int64_t>(1, target_.heads / source_.heads));
  const auto check = [] { check_cuda(cudaGetLastError(), "launching the cut of tile lists"); };
  fill_groups<<<loop_ctas(num_heads), kLoopThreads, 0, stream>>>(cut, a.group_of, a.residues,
                                                                 num_heads, heads_per_group);
  check();
  const int64_t lists = int64_t{sizes_.groups} * sizes_.q_tiles;
  cut_lists<<<loop_ctas(32 * lists), kLoopThreads, 0, stream>>>(cut, a.list_begin, a.list_count,
                                                                a.runs, a.items);
  check();
  const bool is_mma = target_.layout == BitmapLayout::mma;
  const auto draw = is_mma ? draw_bitmaps<BitmapLayout::mma, false>
                           : draw_bitmaps<BitmapLayout::row_major, false>;
  draw<<<loop_ctas(sizes_.num_bitmaps * sizes_.bitmap_words), kLoopThreads, 0, stream>>>(cut,
                                                                                         a.bitmaps);
  check();
  const auto deal = [&](const WorkItem* items, const TileRun* runs, int32_t per_group,
                        ShareItem* shares, int32_t ctas_that_stay) {
    const int64_t all = int64_t{num_heads} * per_group;
    if (ctas_that_stay == 0 || all == 0) return;
    const auto ctas = int32_t(all < ctas_that_stay ? all : ctas_that_stay);
    deal_items<<<loop_ctas(all), kLoopThreads, 0, stream>>>(
        items, per_group, runs, num_heads, heads_per_group, target_.heads_per_section, ctas,
        shares);
    check();
  };
  if (!target_.with_transposed) {
    deal(a.items, a.runs, sizes_.q_tiles, a.shares, target_.num_ctas);
    return;
  }
  if (is_mma) {
    draw_bitmaps<BitmapLayout::mma, true>
        <<<loop_ctas(sizes_.num_bitmaps * sizes_.t_bitmap_words), kLoopThreads, 0, stream>>>(
            cut, a.t_bitmaps);
    check();
  }
  const SortByKey sort = sort_of(sizes_.groups, sizes_.k_tiles, sizes_.num_pairs);
  if (sizes_.num_pairs > 0) {
    pair_tiles<<<loop_ctas(sizes_.num_pairs), kLoopThreads, 0, stream>>>(cut, sort.pairs(a.sort));
    check();
  }
  const SortByKey::Sorted sorted = sort.sort(a.sort, stream);
  const int64_t most = std::max(sizes_.num_pairs, int64_t{sizes_.groups} * sizes_.k_tiles);
  fill_transposed<<<loop_ctas(most), kLoopThreads, 0, stream>>>(cut, sorted, a.t_runs, a.t_items);
  check();
  deal(a.t_items, a.t_runs, sizes_.k_tiles, a.t_shares, target_.num_ctas);
}

}  // namespace keyhole::device
