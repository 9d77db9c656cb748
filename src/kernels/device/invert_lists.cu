// src/kernels/device/invert_lists.cu
// Every entry of the table becomes a pair (group and key, list), in the order of lists. A stable
// sort by the first brings the lists of a key together and leaves them ascending; where each key
// begins is then found by bisection. Entries that are no key sort to the end.
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/invert_lists.h"
#include "kernels/device/key_list.cuh"

namespace keyhole::device {
namespace {

constexpr int kThreads = 256;

struct Extent {
  int64_t entries, keys;  // of all groups

  explicit Extent(const GatherView& view)
      : entries(checked_mul(checked_mul(view.groups, view.lists, "attention: lists"),
                            view.table.count, "attention: entries of the indices")),
        keys(checked_mul(view.groups, view.k_len, "attention: keys of all lists")) {
    KEYHOLE_CHECK(view.lists * view.table.count <= INT32_MAX && keys < UINT32_MAX,
                  "attention: this backward pass sorts the indices by key, ", entries,
                  " of them over ", keys, " keys in all; at most ", INT32_MAX, " a head and ",
                  UINT32_MAX, " keys can be sorted: split the batch or the queries");
  }
  int bits() const { return std::max(1, int(std::bit_width(uint64_t(keys)))); }  // `keys`: none
};

using SortKeys = cub::DoubleBuffer<uint32_t>;
using SortLists = cub::DoubleBuffer<int32_t>;

// cub's own scratch memory; with `memory` null only its size is found.
size_t sort(void* memory, size_t bytes, SortKeys& keys, SortLists& lists, const Extent& extent,
            cudaStream_t stream) {
  check_cuda(cub::DeviceRadixSort::SortPairs(memory, bytes, keys, lists, extent.entries, 0,
                                             extent.bits(), stream),
             "sorting indices by key");
  return bytes;
}

// Piece after piece; without memory only the size means anything.
struct Room {
  int64_t* begin = nullptr;
  int32_t* count = nullptr;
  uint32_t* keys[2] = {};
  int32_t* lists[2] = {};
  void* scratch = nullptr;
  size_t scratch_bytes = 0;
  int64_t bytes = 0;

  Room(const Extent& extent, void* memory) {
    const auto take = [&]<class Element>(Element*& pointer, int64_t elements) {
      pointer = reinterpret_cast<Element*>(static_cast<char*>(memory) + bytes);
      bytes = checked_add(
          bytes, round_up(checked_mul(elements, int64_t(sizeof(Element)), "workspace"), 256),
          "workspace");
    };
    take(begin, extent.keys);
    take(count, extent.keys);
    for (uint32_t*& side : keys) take(side, extent.entries);
    for (int32_t*& side : lists) take(side, extent.entries);
    SortKeys no_keys;
    SortLists no_lists;
    scratch_bytes = sort(nullptr, 0, no_keys, no_lists, extent, nullptr);
    char* rest = nullptr;
    take(rest, int64_t(scratch_bytes));
    scratch = rest;
  }
};

__device__ inline int64_t first_thread() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }
__device__ inline int64_t all_threads() { return int64_t{gridDim.x} * kThreads; }
unsigned ctas_for(int64_t threads) {  // the kernels loop over what is left
  return unsigned(std::clamp<int64_t>(ceil_div(threads, kThreads), 1, int64_t{1} << 20));
}

__global__ void __launch_bounds__(kThreads)
    pair_up(const __grid_constant__ GatherView view, uint32_t* keys, int32_t* lists,
            int64_t entries) {
  const uint32_t no_key = uint32_t(view.groups * view.k_len);
  for (int64_t i = first_thread(); i < entries; i += all_threads()) {
    const int64_t all_lists = i / view.table.count;  // of the groups before this one, too
    const int32_t group = int32_t(all_lists / view.lists);
    const int64_t list = all_lists - group * view.lists;
    const int32_t key = key_list(view, group, list).at(uint32_t(i - all_lists * view.table.count));
    keys[i] = key < 0 ? no_key : uint32_t(group * view.k_len + key);
    lists[i] = int32_t(list);
  }
}

// How many of the sorted keys are less than `key`.
__device__ int64_t num_before(const uint32_t* sorted, int64_t count, uint32_t key) {
  int64_t begin = 0, end = count;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (sorted[middle] < key) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

__global__ void __launch_bounds__(kThreads)
    find_keys(const uint32_t* sorted, int64_t entries, int64_t keys, int64_t* begin,
              int32_t* count) {
  for (int64_t key = first_thread(); key < keys; key += all_threads()) {
    begin[key] = num_before(sorted, entries, uint32_t(key));
    count[key] = int32_t(num_before(sorted, entries, uint32_t(key) + 1) - begin[key]);
  }
}

}  // namespace

int64_t inverted_lists_bytes(const GatherView& view) { return Room(Extent(view), nullptr).bytes; }

GatherView invert_lists(const GatherView& view, void* memory, cudaStream_t stream) {
  const Extent extent(view);
  const Room room(extent, memory);
  SortKeys keys(room.keys[0], room.keys[1]);
  SortLists lists(room.lists[0], room.lists[1]);
  if (extent.entries > 0 && extent.keys > 0) {
    pair_up<<<ctas_for(extent.entries), kThreads, 0, stream>>>(view, keys.Current(),
                                                               lists.Current(), extent.entries);
    check_cuda(cudaGetLastError(), "launching the pairs of indices");
    sort(room.scratch, room.scratch_bytes, keys, lists, extent, stream);
  }
  if (extent.keys > 0) {
    find_keys<<<ctas_for(extent.keys), kThreads, 0, stream>>>(keys.Current(), extent.entries,
                                                              extent.keys, room.begin, room.count);
    check_cuda(cudaGetLastError(), "launching the search for keys among sorted indices");
  }
  GatherView inverted = view;
  inverted.t_list_begin = room.begin;
  inverted.t_list_count = room.count;
  inverted.t_lists = lists.Current();
  return inverted;
}

}  // namespace keyhole::device
