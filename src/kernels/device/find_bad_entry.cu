// src/kernels/device/find_bad_entry.cu
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/find_bad_entry.h"
#include "kernels/device/key_list.cuh"

namespace keyhole::device {
namespace {

constexpr int kFindThreads = 256;

__global__ void __launch_bounds__(kFindThreads)
    find_bad_entry(const __grid_constant__ GatherView view, unsigned long long* found) {
  const KeyTable& table = view.table;
  const int64_t entries = view.groups * view.lists * table.count;
  const int64_t accepted = table.entries_of(view.k_len);
  const int64_t step = int64_t{gridDim.x} * kFindThreads;
  for (int64_t i = int64_t{blockIdx.x} * kFindThreads + threadIdx.x; i < entries; i += step) {
    const int64_t all_lists = i / table.count, place = i - all_lists * table.count;
    const auto group = int32_t(all_lists / view.lists);
    const int64_t list = all_lists - group * view.lists;
    if (place >= used_entries(table, group, list)) continue;
    const int64_t at = table.begin_of(group, list) + place * table.entry_stride;
    const int64_t value = table.is_wide ? static_cast<const int64_t*>(table.entries)[at]
                                        : static_cast<const int32_t*>(table.entries)[at];
    if (value < -1 || value >= accepted) atomicMin(found, static_cast<unsigned long long>(i));
  }
}

}  // namespace

void launch_find_bad_entry(const GatherView& view, uint64_t* found, cudaStream_t stream) {
  static_assert(kNoBadEntry == ~uint64_t{0} && sizeof(unsigned long long) == sizeof(uint64_t));
  check_cuda(cudaMemsetAsync(found, 0xff, sizeof(uint64_t), stream),
             "clearing what a search of indices finds");
  const int64_t entries = view.groups * view.lists * view.table.count;
  const auto ctas =
      unsigned(std::clamp<int64_t>(ceil_div(entries, kFindThreads), 1, int64_t{1} << 16));
  find_bad_entry<<<ctas, kFindThreads, 0, stream>>>(view,
                                                    reinterpret_cast<unsigned long long*>(found));
  check_cuda(cudaGetLastError(), "launching a search of indices");
}

}  // namespace keyhole::device
