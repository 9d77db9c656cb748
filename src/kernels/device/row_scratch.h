// src/kernels/device/row_scratch.h
// Memory in which each warp of a launch of entmax keeps the list of the row it works on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/int_math.h"

namespace keyhole::device {

// A key of a row, and what is known of it.
template <class Number>
struct Scored {
  Number score;  // finite
  int32_t key;
};

struct RowScratch {
  void* lists = nullptr;       // 256-byte aligned
  int32_t bytes_per_list = 0;  // of a warp
  int32_t num_lists = 0;

  // How much is wanted for rows of k_len keys, without the memory.
  static RowScratch of(int64_t k_len, int64_t num_lists) {
    // A row with more keys of weight than this reads its keys several times.
    constexpr int64_t kMostEntries = 4096, kFewestEntries = 256;
    const int64_t entries =
        std::clamp(round_up(k_len, int64_t{32}) + 32, kFewestEntries, kMostEntries);
    const int64_t bytes = round_up(entries * int64_t(sizeof(Scored<float>)), int64_t{256});
    return {nullptr, int32_t(bytes), narrow(num_lists, "attention: lists of rows")};
  }
  int64_t bytes() const {
    return checked_mul(int64_t{num_lists}, int64_t{bytes_per_list}, "attention: lists of rows");
  }
  __host__ __device__ void* list(int64_t index) const {
    return static_cast<char*>(lists) + index * bytes_per_list;
  }
};

}  // namespace keyhole::device
