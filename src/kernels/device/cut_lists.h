// src/kernels/device/cut_lists.h
// Turns tile lists in device memory (keyhole/lists.h) into lists that kernels read, on the device.
// They are cut into the kernel's tiles. Masked tiles and tiles that extend past the end of k get
// bitmaps in the kernel's layout. Work is distributed to CTAs, and a backward pass also gets the
// lists by key tile. The host knows only sizes: nothing is copied to it and nothing waits.
//
// The distribution is a static stride: item n of all heads goes to CTA n mod num_ctas. The last
// query tiles come first, because their lists are the longest in causal patterns.
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

// The caller's lists, in the kernels' terms.
struct ListSource {
  TileShape tile;
  int64_t batch = 0, heads = 0, lists = 0, capacity = 0;  // shape of `tiles`
  DeviceIndices tiles, counts, bitmap_of;
  const uint64_t* bitmaps = nullptr;
  int64_t num_bitmaps = 0;
};

// What a kernel needs.
struct ListTarget {
  TileShape tile;  // divides the source's
  BitmapLayout layout = BitmapLayout::row_major;
  int64_t q_len = 0, k_len = 0;
  int32_t batch = 1, heads = 1;   // of q
  bool with_transposed = false;   // also distribute lists by key tile
  int32_t num_ctas = 0;           // persistent CTAs; 0: one CTA per item
  int32_t heads_per_section = 1;  // heads that are processed together
};

class CutLists {
 public:
  CutLists(const ListSource& source, const ListTarget& target);

  int64_t bytes() const { return bytes_; }  // of scratch memory, 256-byte aligned

  // The view, with pointers into `memory`. With null only the sizes are meaningful.
  TileView view(void* memory) const;
  // Queues the kernels that fill the memory.
  void queue(void* memory, cudaStream_t stream) const;

 private:
  struct Sizes {
    int32_t groups, q_tiles, k_tiles;
    int32_t down, across;   // kernel tiles per tile of the source
    int32_t runs_per_list;  // capacity
    int32_t tail_columns;   // of the last key tile if it is partial; else 0
    int64_t num_bitmaps;
    int64_t bitmap_words, t_bitmap_words;  // 32-bit words per bitmap
    int64_t num_pairs;                     // capacity of (query tile, key tile) pairs
  };
  struct Arrays;
  Arrays arrays(void* memory) const;

  ListSource source_;
  ListTarget target_;
  Sizes sizes_;
  int64_t bytes_ = 0;
};

}  // namespace keyhole::device
