// src/kernels/device/invert_lists.cu
// Every entry of the table becomes a pair (group and key, list), in list order, so that the lists
// of a key come out ascending.
#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/grid_loop.cuh"
#include "kernels/device/invert_lists.h"
#include "kernels/device/key_list.cuh"
#include "kernels/device/sort_by_key.h"

namespace keyhole::device {
namespace {

int64_t num_entries(const GatherView& view) {
  return checked_mul(checked_mul(view.groups, view.lists, "attention: lists"), view.table.count,
                     "attention: entries of the indices");
}

SortByKey sort_of(const GatherView& view) {
  const int64_t entries = num_entries(view);
  const int64_t keys = checked_mul(view.groups, view.k_len, "attention: keys of all lists");
  KEYHOLE_CHECK(view.lists * view.table.count <= INT32_MAX && keys < UINT32_MAX,
                "attention: this backward pass sorts the indices by key, ", entries,
                " of them over ", keys, " keys in all; at most ", INT32_MAX, " a head and ",
                UINT32_MAX, " keys can be sorted: split the batch or the queries");
  return {entries, keys};
}

__global__ void __launch_bounds__(kLoopThreads)
    pair_up(const __grid_constant__ GatherView view, SortByKey::Pairs pairs, int64_t entries) {
  const uint32_t no_key = uint32_t(view.groups * view.k_len);
  for_each_index(entries, [&](int64_t i) {
    const int64_t all_lists = i / view.table.count;  // counts the previous groups, too
    const int32_t group = int32_t(all_lists / view.lists);
    const int64_t list = all_lists - group * view.lists;
    const int32_t key = key_list(view, group, list).at(uint32_t(i - all_lists * view.table.count));
    pairs.keys[i] = key < 0 ? no_key : uint32_t(group * view.k_len + key);
    pairs.values[i] = int32_t(list);
  });
}

}  // namespace

int64_t inverted_lists_bytes(const GatherView& view) { return sort_of(view).bytes(); }

GatherView invert_lists(const GatherView& view, void* memory, cudaStream_t stream) {
  const SortByKey sort = sort_of(view);
  const int64_t entries = num_entries(view);
  if (entries > 0) {
    pair_up<<<loop_ctas(entries), kLoopThreads, 0, stream>>>(view, sort.pairs(memory), entries);
    check_cuda(cudaGetLastError(), "launching the pairs of indices");
  }
  const SortByKey::Sorted sorted = sort.sort(memory, stream);
  GatherView inverted = view;
  inverted.t_list_begin = sorted.begin;
  inverted.t_list_count = sorted.count;
  inverted.t_lists = sorted.values;
  return inverted;
}

}  // namespace keyhole::device
