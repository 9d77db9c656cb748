// src/kernels/device/invert_lists.cu
// Every key of the table becomes a pair (group and key, list), in list order, so that the lists of
// a key come out ascending.
#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/grid_loop.cuh"
#include "kernels/device/invert_lists.h"
#include "kernels/device/key_list.cuh"
#include "kernels/device/sort_by_key.h"

namespace keyhole::device {
namespace {

// One for every key, and for padding.
int64_t num_places(const GatherView& view) {
  return checked_mul(checked_mul(view.groups, view.lists, "attention: lists"), view.table.room(),
                     "attention: keys of all lists");
}

SortByKey sort_of(const GatherView& view) {
  const int64_t places = num_places(view);
  const int64_t keys = checked_mul(view.groups, view.k_len, "attention: keys of all groups");
  KEYHOLE_CHECK(view.lists * view.table.room() <= INT32_MAX && keys < UINT32_MAX,
                "attention: this backward pass sorts the listed keys, ", places, " of them over ",
                keys, " keys in all; at most ", INT32_MAX, " a head and ", UINT32_MAX,
                " keys can be sorted: split the batch or the queries");
  return {places, keys};
}

__global__ void __launch_bounds__(kLoopThreads)
    pair_up(const __grid_constant__ GatherView view, SortByKey::Pairs pairs, int64_t places) {
  const uint32_t no_key = uint32_t(view.groups * view.k_len);
  const int32_t room = view.table.room();
  for_each_index(places, [&](int64_t i) {
    const int64_t all_lists = i / room;  // counts the previous groups, too
    const int32_t group = int32_t(all_lists / view.lists);
    const int64_t list = all_lists - group * view.lists;
    const int32_t key = key_list(view, group, list).at(uint32_t(i - all_lists * room));
    pairs.keys[i] = key < 0 ? no_key : uint32_t(group * view.k_len + key);
    pairs.values[i] = int32_t(list);
  });
}

}  // namespace

int64_t inverted_lists_bytes(const GatherView& view) { return sort_of(view).bytes(); }

GatherView invert_lists(const GatherView& view, void* memory, cudaStream_t stream) {
  const SortByKey sort = sort_of(view);
  const int64_t places = num_places(view);
  if (places > 0) {
    pair_up<<<loop_ctas(places), kLoopThreads, 0, stream>>>(view, sort.pairs(memory), places);
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
