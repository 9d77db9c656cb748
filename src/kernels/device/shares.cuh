// src/kernels/device/shares.cuh
// The items of a CTA that stays, one after the other.
#pragma once

#include "plan/view.h"

namespace keyhole::device {

//   for (ShareCursor at(view.work.shares); at.is_valid(); at.next()) follow(at.item());
// Two registers; the shares themselves lie among the kernel's parameters.
class ShareCursor {
 public:
  __device__ explicit ShareCursor(const Shares& shares)
      : shares_(shares), at_(shares.begin[blockIdx.x]), end_(shares.begin[blockIdx.x + 1]) {}
  __device__ bool is_valid() const { return at_ < end_; }
  __device__ const WorkItem& item() const { return shares_.items[at_]; }
  __device__ void next() { ++at_; }

 private:
  const Shares& shares_;
  int32_t at_, end_;
};

}  // namespace keyhole::device
