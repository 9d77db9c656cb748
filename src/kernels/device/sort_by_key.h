// src/kernels/device/sort_by_key.h
// A stable sort of (key, value) pairs by key, on the device: the result is the same every time. The
// beginning of each key is found by bisection.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace keyhole::device {

class SortByKey {
 public:
  // Keys are 0 to num_keys - 1; a pair with key num_keys is ignored.
  SortByKey(int64_t num_pairs, int64_t num_keys);

  int64_t bytes() const { return bytes_; }  // of scratch memory, 256-byte aligned

  // The pairs, to be filled before `sort`: [num_pairs] each.
  struct Pairs {
    uint32_t* keys;
    int32_t* values;
  };
  Pairs pairs(void* memory) const;

  struct Sorted {
    const int64_t* begin;   // [num_keys]  where the values of a key begin
    const int32_t* count;   // [num_keys]
    const int32_t* values;  // [num_pairs]
  };
  Sorted sort(void* memory, cudaStream_t stream) const;
  // Where `sort` leaves these; known before it runs.
  const int64_t* begin(void* memory) const;
  const int32_t* count(void* memory) const;

 private:
  int64_t num_pairs_, num_keys_;
  int64_t begin_at_, count_at_, keys_at_[2], values_at_[2], scratch_at_;
  size_t scratch_bytes_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace keyhole::device
