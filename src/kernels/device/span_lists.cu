// src/kernels/device/span_lists.cu
// A warp cuts a list: it counts the keys of each span, and puts them in their places, 32 at a time,
// in the order in which they are listed.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/key_list.cuh"
#include "kernels/device/span_lists.h"

namespace keyhole::device {
namespace {

constexpr int32_t kSpanWarps = 4;  // per CTA
// A counter of each span and warp, in the shared memory that a launch has without asking.
constexpr int32_t kMostSpans = 48 * 1024 / (4 * kSpanWarps);
// Of all that a chunk needs.
constexpr int64_t kChunkBytes = int64_t{384} << 20;
// Of a list: the query of a row is found by a product of 32 bits, for up to 4,096 heads.
constexpr int64_t kMostRows = int64_t{1} << 20;
// The longest list, in mean ones.
constexpr int64_t kMostUneven = 64;

int64_t bytes_per_list(const SpanLists& lists) {
  return lists.room * (4 + 2 * lists.row_tiles * kPairBytes) + 4 * (lists.spans + 1);
}

__global__ void __launch_bounds__(32 * kSpanWarps)
    cut_into_spans(const __grid_constant__ Sizes sizes, const __grid_constant__ GatherView view,
                   const __grid_constant__ SpanLists to) {
  extern __shared__ int32_t counters[];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t index = int64_t{blockIdx.x} * kSpanWarps + warp;
  if (index >= to.count) return;
  const int64_t unit = (to.first + index) / view.lists;
  const int64_t head_index = unit * (sizes.heads / sizes.kv_heads) + to.first_head;
  const KeyList list =
      key_list(view, view.group_of_head(head_index), to.first + index - unit * view.lists);
  int32_t* const counter = counters + warp * to.spans;
  int32_t* const keys = to.keys + index * to.room;

  for (int32_t span = int32_t(lane); span < to.spans; span += 32) counter[span] = 0;
  __syncwarp();
  for (int32_t first = 0; first < list.count; first += 32) {
    const int32_t key = list.at(uint32_t(first) + lane);
    if (key >= 0) atomicAdd(counter + key / kSpanKeys, 1);
  }
  __syncwarp();
  int32_t total = 0;
  for (int32_t first = 0; first < to.spans; first += 32) {
    const int32_t span = first + int32_t(lane);
    const int32_t count = span < to.spans ? counter[span] : 0;
    int32_t sum = count;  // up to and with this lane
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += before;
    }
    if (span < to.spans) {
      counter[span] = total + sum - count;
      to.begin[span * to.chunk + index] = total + sum - count;
    }
    total += __shfl_sync(~0u, sum, 31);
  }
  if (lane == 0) to.begin[to.spans * to.chunk + index] = total;
  __syncwarp();
  for (int32_t first = 0; first < list.count; first += 32) {
    const int32_t key = list.at(uint32_t(first) + lane);
    const int32_t span = key >= 0 ? key / kSpanKeys : -1;
    const uint32_t same = __match_any_sync(~0u, span);
    const int32_t rank = __popc(same & ((1u << lane) - 1));
    const int32_t begin = key >= 0 ? counter[span] : 0;
    __syncwarp();
    if (key >= 0) {
      keys[begin + rank] = key;
      if (rank == 0) counter[span] = begin + __popc(same);
    }
    __syncwarp();
  }
}

}  // namespace

int64_t SpanLists::bytes() const {
  const int64_t places = checked_mul(chunk, room, "key lists: places");
  return round_up(4 * places, int64_t{256}) + round_up(4 * (spans + 1) * chunk, int64_t{256}) +
         2 * round_up(checked_mul(places, row_tiles * kPairBytes, "key lists: weights"),
                      int64_t{256});
}

void SpanLists::place(void* memory) {
  char* at = static_cast<char*>(memory);
  const auto take = [&](int64_t size) {
    char* const begin = at;
    at += round_up(size, int64_t{256});
    return begin;
  };
  keys = reinterpret_cast<int32_t*>(take(4 * chunk * room));
  begin = reinterpret_cast<int32_t*>(take(4 * (spans + 1) * chunk));
  weights = take(chunk * room * row_tiles * kPairBytes);
  gradients = take(chunk * room * row_tiles * kPairBytes);
}

KeyListOrder key_lists_in_order(const Request& request) {
  const KeyListSizes& sizes = request.key_lists;
  // Rows of a product that are not there cost as much as others.
  const bool has_rows = sizes.rows >= kPairRows / 4 && sizes.rows <= kMostRows;
  const int64_t spans = ceil_div(sizes.k_len, int64_t{kSpanKeys});
  // A span costs something in every list, even without a pair.
  const bool has_pairs = 2 * sizes.keys >= spans;
  // All lists have the room of the longest one, and a chunk of few pairs costs as much as others.
  const bool is_even = sizes.room <= kMostUneven * sizes.keys;
  if (request.has_softcap || !has_rows || !has_pairs || !is_even || spans > kMostSpans) {
    return KeyListOrder::by_key;
  }
  const int64_t row_tiles = ceil_div(sizes.rows, int64_t{kPairRows});
  const bool fits = row_tiles <= kChunkBytes / kPairBytes / 4 / std::max<int64_t>(1, sizes.room);
  return fits ? KeyListOrder::by_span : KeyListOrder::by_key;
}

SpanLists span_lists(const Sizes& sizes, const GatherView& view) {
  SpanLists lists;
  lists.lists = checked_mul(int64_t{sizes.batch} * sizes.kv_heads, view.lists, "key lists");
  lists.heads = view.heads_per_list(sizes.heads / sizes.kv_heads);
  lists.spans = int32_t(ceil_div(view.k_len, int64_t{kSpanKeys}));
  lists.room = view.room();
  const int64_t rows = int64_t{view.rows_per_list} * lists.heads;
  lists.row_tiles = narrow(ceil_div(rows, int64_t{kPairRows}), "key lists: rows of a list");
  lists.chunk = std::clamp<int64_t>(kChunkBytes / bytes_per_list(lists), 1,
                                    std::max<int64_t>(lists.lists, 1));
  return lists;
}

void cut_span_lists(const Sizes& sizes, const GatherView& view, const SpanLists& lists,
                    cudaStream_t stream) {
  cut_into_spans<<<unsigned(ceil_div(lists.count, int64_t{kSpanWarps})), 32 * kSpanWarps,
                   size_t(4 * kSpanWarps * lists.spans), stream>>>(sizes, view, lists);
  check_cuda(cudaGetLastError(), "launching the cut of key lists");
}

}  // namespace keyhole::device
