// src/kernels/device/shares.cuh
// The work items of a persistent CTA, one after another: those it was assigned, or those it draws.
#pragma once

#include "plan/view.h"

namespace keyhole::device {

//   for (ShareCursor at(view.work.shares); at.is_valid(); at.next()) follow(at.item());
// Takes one register; the shares themselves are kernel parameters. For a launch of shares.num_ctas
// CTAs, each of which has at least one item.
class ShareCursor {
 public:
  __device__ explicit ShareCursor(const Shares& shares)
      : shares_(shares), at_(int32_t(blockIdx.x)) {}
  __device__ bool is_valid() const { return at_ != kLastItem; }
  __device__ const ShareItem& item() const { return shares_.items[at_]; }
  __device__ void next() { at_ = item().next; }

 private:
  const Shares& shares_;
  int32_t at_;
};

// Items that CTAs draw one by one, in their order. drawn: how many, 0 at first.
class DrawnCursor {
 public:
  __device__ DrawnCursor(const Shares& shares, int32_t* drawn) : shares_(shares), drawn_(drawn) {
    next();
  }
  __device__ bool is_valid() const { return at_ < shares_.num_items; }
  __device__ const ShareItem& item() const { return shares_.items[at_]; }
  __device__ void next() { at_ = atomicAdd(drawn_, 1); }

 private:
  const Shares& shares_;
  int32_t* const drawn_;
  int32_t at_;
};

}  // namespace keyhole::device
