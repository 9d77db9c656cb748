// src/kernels/device/span_lists.h
// Key lists, cut at the borders of *spans* of neighbouring keys. One CTA adds up the gradients of a
// span or two, list after list: so nothing is scattered, and the order of additions is always the
// same. The weights of all pairs are in memory meanwhile; so lists are taken in chunks that fit a
// fixed workspace.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device/params.h"

namespace keyhole::device {

inline constexpr int32_t kSpanKeys = 256;
// Rows of a matrix product: query heads of a kv head, for every query that shares the list.
inline constexpr int32_t kPairRows = 16;
// The weights of a pair of such rows and a key: kPairRows numbers of 16 bits.
inline constexpr int64_t kPairBytes = 2 * kPairRows;

// A chunk: `count` lists from `first` on. Lists are counted over all kv heads: (batch * kv_heads +
// kv_head) * view.lists + list. Where the query heads of a kv head have different lists, those of
// `heads` neighbours are followed, and then those of the next ones.
struct SpanLists {
  int64_t lists = 0, chunk = 0;  // of such heads; at most this many at a time
  int32_t heads = 1;             // query heads of a kv head that share a list
  int32_t spans = 0;             // of k_len keys
  int32_t room = 0;              // places of a list
  int32_t row_tiles = 0;         // per list, of kPairRows rows

  int32_t first_head = 0;  // among those of the kv head
  int64_t first = 0, count = 0;
  int32_t* keys = nullptr;   // [chunk][room]       span after span, in each as listed; no padding
  int32_t* begin = nullptr;  // [spans + 1][chunk]  where the keys of a span begin in a list
  // [chunk][row_tiles][room], kPairBytes each: row 2 i, 2 i + 1, 2 i + 8 and 2 i + 9 for i = 0..3.
  char* weights = nullptr;
  char* gradients = nullptr;  // of scores

  int64_t bytes() const;
  // Takes bytes() of memory, aligned to 256 bytes.
  void place(void* memory);
};

// How a deterministic pass on tensor cores follows the lists of a call.
KeyListOrder key_lists_in_order(const Request& request);
SpanLists span_lists(const Sizes& sizes, const GatherView& view);

// Queues the cut of the lists of a chunk.
void cut_span_lists(const Sizes& sizes, const GatherView& view, const SpanLists& lists,
                    cudaStream_t stream);

}  // namespace keyhole::device
