// src/kernels/device/sort_by_key.cu
#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/grid_loop.cuh"
#include "kernels/device/sort_by_key.h"

namespace keyhole::device {
namespace {

using Keys = cub::DoubleBuffer<uint32_t>;
using Values = cub::DoubleBuffer<int32_t>;

// Sorts with cub. With `memory` null it only returns the size of cub's scratch memory.
size_t sort_pairs(void* memory, size_t bytes, Keys& keys, Values& values, int64_t num_pairs,
                  int64_t num_keys, cudaStream_t stream) {
  const int bits =
      std::max(1, int(std::bit_width(uint64_t(num_keys))));  // num_keys itself means: no key
  check_cuda(
      cub::DeviceRadixSort::SortPairs(memory, bytes, keys, values, num_pairs, 0, bits, stream),
      "sorting lists by key");
  return bytes;
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

__global__ void __launch_bounds__(kLoopThreads)
    find_keys(const uint32_t* sorted, int64_t num_pairs, int64_t num_keys, int64_t* begin,
              int32_t* count) {
  for_each_index(num_keys, [&](int64_t key) {
    begin[key] = num_before(sorted, num_pairs, uint32_t(key));
    count[key] = int32_t(num_before(sorted, num_pairs, uint32_t(key) + 1) - begin[key]);
  });
}

template <class Element>
Element* at(void* memory, int64_t offset) {
  return reinterpret_cast<Element*>(static_cast<char*>(memory) + offset);
}

}  // namespace

SortByKey::SortByKey(int64_t num_pairs, int64_t num_keys)
    : num_pairs_(num_pairs), num_keys_(num_keys) {
  const auto take = [&](int64_t& offset, int64_t elements, int64_t element_bytes) {
    offset = bytes_;
    bytes_ = checked_add(bytes_, round_up(checked_mul(elements, element_bytes, "workspace"), 256),
                         "workspace");
  };
  take(begin_at_, num_keys, sizeof(int64_t));
  take(count_at_, num_keys, sizeof(int32_t));
  for (int64_t& offset : keys_at_) take(offset, num_pairs, sizeof(uint32_t));
  for (int64_t& offset : values_at_) take(offset, num_pairs, sizeof(int32_t));
  Keys no_keys;
  Values no_values;
  scratch_bytes_ = sort_pairs(nullptr, 0, no_keys, no_values, num_pairs, num_keys, nullptr);
  take(scratch_at_, int64_t(scratch_bytes_), 1);
}

SortByKey::Pairs SortByKey::pairs(void* memory) const {
  return {at<uint32_t>(memory, keys_at_[0]), at<int32_t>(memory, values_at_[0])};
}

const int64_t* SortByKey::begin(void* memory) const { return at<int64_t>(memory, begin_at_); }
const int32_t* SortByKey::count(void* memory) const { return at<int32_t>(memory, count_at_); }

SortByKey::Sorted SortByKey::sort(void* memory, cudaStream_t stream) const {
  Keys keys(at<uint32_t>(memory, keys_at_[0]), at<uint32_t>(memory, keys_at_[1]));
  Values values(at<int32_t>(memory, values_at_[0]), at<int32_t>(memory, values_at_[1]));
  if (num_pairs_ > 0 && num_keys_ > 0) {
    sort_pairs(at<char>(memory, scratch_at_), scratch_bytes_, keys, values, num_pairs_, num_keys_,
               stream);
  }
  auto* const begin = at<int64_t>(memory, begin_at_);
  auto* const count = at<int32_t>(memory, count_at_);
  if (num_keys_ > 0) {
    find_keys<<<loop_ctas(num_keys_), kLoopThreads, 0, stream>>>(keys.Current(), num_pairs_,
                                                                 num_keys_, begin, count);
    check_cuda(cudaGetLastError(), "launching the search for keys among sorted lists");
  }
  return {begin, count, values.Current()};
}

}  // namespace keyhole::device
