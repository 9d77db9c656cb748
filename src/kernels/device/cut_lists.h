// src/kernels/device/cut_lists.h
// Tile lists that lie on the device (keyhole/lists.h) become lists that kernels follow, on the
// device: cut into the kernel's tiles, with bitmaps of its layout for masked tiles and for tiles
// that hang over the end of k, dealt out to CTAs, and by key tile for a backward pass. The host
// knows sizes alone; nothing is copied to it and nothing waits.
//
// Work is dealt out by a static stride: item n of all heads goes to CTA n mod num_ctas, the last
// query tiles first, whose lists are the longest of causal patterns.
#pragma once

#include <cuda_runtime_api.h>

#include "keyhole/tensor.h"
#include "plan/view.h"

namespace keyhole::device {

// An IndexView as device code reads it.
struct DeviceIndices {
  const void* data = nullptr;  // null: not given
  bool is_wide = false;
  int64_t heads = 1;
  int64_t strides[4] = {};
};

// The caller's lists, in the words of kernels.
struct ListSource {
  TileShape tile;
  int64_t batch = 0, heads = 0, lists = 0, capacity = 0;  // shape of `tiles`
  DeviceIndices tiles, counts, bitmap_of;
  const uint64_t* bitmaps = nullptr;
  int64_t num_bitmaps = 0;
};

// What a kernel wants of them.
struct ListTarget {
  TileShape tile;  // divides the source's
  BitmapLayout layout = BitmapLayout::row_major;
  int64_t q_len = 0, k_len = 0;
  int32_t batch = 1, heads = 1;   // of q
  bool with_transposed = false;   // and dealt out by key tile
  int32_t num_ctas = 0;           // that stay; 0: a CTA for each item
  int32_t heads_per_section = 1;  // heads whose items follow one another
};

class CutLists {
 public:
  CutLists(const ListSource& source, const ListTarget& target);

  int64_t bytes() const { return bytes_; }  // of scratch memory, 256-byte aligned

  // The view, with pointers into `memory`; null: sizes alone.
  TileView view(void* memory) const;
  // Queues what fills that memory.
  void queue(void* memory, cudaStream_t stream) const;

 private:
  struct Sizes {
    int32_t groups, q_tiles, k_tiles;
    int32_t down, across;   // pieces of a tile of the source
    int32_t runs_per_list;  // capacity
    int32_t tail_columns;   // of the last key tile, where it hangs over; else 0
    int64_t num_bitmaps;
    int64_t bitmap_words, t_bitmap_words;  // of 32 bits, of one bitmap
    int64_t num_pairs;                     // (query tile, key tile) that there is room for
  };
  struct Arrays;
  Arrays arrays(void* memory) const;

  ListSource source_;
  ListTarget target_;
  Sizes sizes_;
  int64_t bytes_ = 0;
};

}  // namespace keyhole::device
