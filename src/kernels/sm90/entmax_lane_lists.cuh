// src/kernels/sm90/entmax_lane_lists.cuh
// The lists of a warp: for each of its 16 rows, the products that are above the row's bound. Four
// lanes share a row; each has a list of its own of the columns that it computes, so that taking
// something in needs no other lane. An entry is two neighbouring products of which at least one is
// above the bound, and the first one's place in the row. Before a list is full, the bound is raised
// by what is in it, and what is above it moves on to the candidates of the row in global memory.
//
//   products of row h (0, 1) of a lane    base + h * plane_bytes + 256 * entry        8 bytes
//   places                                base + 2 * plane_bytes + 256 * entry + 4 h  4 bytes
//
// A row whose candidates do not fit is lost to the scan: it is left to device/entmax_rows.cu.
#pragma once

#include <climits>

#include "kernels/sm90/entmax_bound.cuh"
#include "kernels/sm90/entmax_scan_shared.cuh"

namespace keyhole::sm90 {

__device__ __forceinline__ int warp_uniform(int x) { return __shfl_sync(~0u, x, 0); }
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// A list of one lane and one row: `count` entries from `at` on. most: of any lane of the warp.
struct LaneList {
  uint32_t at;
  int count, most;

  __device__ __forceinline__ float2 load(int entry) const {
    float2 two = {-INFINITY, -INFINITY};
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %3, %4;\n@p ld.shared.v2.f32 {%0, %1}, [%2];\n}"
                 : "+f"(two.x), "+f"(two.y)
                 : "r"(at + uint32_t(entry * 256)), "r"(entry), "r"(count));
    return two;
  }
  // Calls visit(product, other product) for each entry, and with -inf for those that only other
  // lanes have.
  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
#pragma unroll 1
    for (int first = 0; first < most; first += 4) {
      float2 four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) four[i] = load(first + i);
#pragma unroll
      for (int i = 0; i < 4; ++i) visit(four[i].x, four[i].y);
    }
  }
};

// Where the candidates of a row go.
struct CandidateRow {
  device::Candidate* entries;
  int32_t capacity;
  int32_t first_key, stride;  // place i of the row is key first_key + stride * i
};

template <class C, bool kPlain>
class LaneLists {
 public:
  static constexpr int plane = ScanShared<C>::plane_bytes;
  // So many entries are taken in before the next look at what is left of a list.
  static constexpr int kStep = 4;
  // Slots of the first look: two maxima each, of tiles in turn.
  static constexpr int kLookSlots = 8;
  static_assert(C::list_entries >= kLookSlots && C::list_entries > kStep);

  // base: of the warp's lists, and this lane's place in them.
  __device__ LaneLists(const BoundRule<kPlain>& rule, uint32_t base) : rule_(rule), base_(base) {}

  // The maxima of a tile of the look, one of each row. They use the memory of the lists.
  __device__ __forceinline__ void store_look(int number, const float (&top)[2]) {
    const uint32_t place = uint32_t(number / 2 % kLookSlots * 256 + number % 2 * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t at = base_ + uint32_t(h * plane) + place;
      float before = -INFINITY;
      if (number >= 2 * kLookSlots) {
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(before) : "r"(at));
      }
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(fmaxf(before, top[h])) : "memory");
    }
  }
  // Sets the bounds from a look at so many tiles; the lists are empty.
  __device__ __forceinline__ void begin(int num_looks) {
    const float nothing[2] = {-INFINITY, -INFINITY};
    if (num_looks % 2 != 0 && num_looks < 2 * kLookSlots) store_look(num_looks, nothing);
    const int slots = min((num_looks + 1) / 2, kLookSlots);
    written_[0] = written_[1] = 0;
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      const uint32_t at = base_ + uint32_t(h * plane);
      const LaneList list = {at, slots, slots};
      float low = start(list);
      // A maximum of +inf: nothing is above it, and the row is left to others.
      const bool is_lost = low == INFINITY;
      constexpr int kRounds = 4;
#pragma unroll 1
      for (int round = 0; round < kRounds; ++round) low = raise(list, low);
      set(h, low, at, is_lost ? kLost : 0);
    }
  }
  // A row that does not exist takes nothing in.
  template <int kH>
  __device__ __forceinline__ void close() {
    above_[kH] = INFINITY;
    written_[kH] = kLost;
  }

  // Whether a list of the warp has no room for kStep more.
  __device__ __forceinline__ bool is_any_full() const {
    constexpr uint32_t kNearlyFull = (C::list_entries - kStep) * 256;
    return __any_sync(~0u, end_[0] - base_ > kNearlyFull || end_[1] - base_ - plane > kNearlyFull);
  }

  // Takes in two neighbouring products of row kH, if one of them is above the bound.
  template <int kH>
  __device__ __forceinline__ void take(float first, float second, uint32_t place) {
    // gtu: greater or NaN, so that a NaN is not lost.
    asm volatile(
        "{\n.reg .pred p;\nsetp.gtu.f32 p, %1, %3;\nsetp.gtu.or.f32 p, %2, %3, p;\n"
        "@p st.shared.v2.f32 [%0], {%1, %2};\n@p st.shared.u32 [%0 + %5], %4;\n"
        "@p add.u32 %0, %0, 256;\n}"
        : "+r"(end_[kH])
        : "f"(first), "f"(second), "f"(above_[kH]), "r"(place), "n"(kH == 0 ? 2 * plane : plane + 4)
        : "memory");
  }

  // Raises the bounds and empties the lists. to: of this lane's rows.
  __device__ __forceinline__ void flush(const CandidateRow (&to)[2]) {
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      const uint32_t at = base_ + uint32_t(h * plane),
                     places = at + uint32_t(h == 0 ? 2 * plane : plane + 4);
      const int count = int((h == 0 ? end_[0] : end_[1]) - at) / 256;
      const LaneList list = {at, count, warp_uniform(int(__reduce_max_sync(~0u, unsigned(count))))};
      float low = h == 0 ? level_[0] : level_[1];
      if (__any_sync(~0u, low == -INFINITY)) low = fmaxf(low, start(list));
      low = raise(list, low);
      const float above = rule_.product_below(low);
      int own = 0;
      list.for_each([&](float first, float second) {
        own += (!(first <= above) ? 1 : 0) + (!(second <= above) ? 1 : 0);
      });
      const int lane = int(threadIdx.x) % 4;
      int up_to = own;  // of this lane and those before it
      int other = __shfl_up_sync(~0u, up_to, 1, 4);
      up_to += lane >= 1 ? other : 0;
      other = __shfl_up_sync(~0u, up_to, 2, 4);
      up_to += lane >= 2 ? other : 0;
      const int before = h == 0 ? written_[0] : written_[1];
      const int total = before + __shfl_sync(~0u, up_to, 3, 4);
      const CandidateRow row = h == 0 ? to[0] : to[1];
      const bool is_lost = before == kLost || !(low < INFINITY) || total > row.capacity;
      device::Candidate* next = row.entries + (before + up_to - own);
      const int num_written = is_lost ? 0 : list.most;
#pragma unroll 1
      for (int entry = 0; entry < num_written; ++entry) {
        const float2 two = list.load(entry);
        int32_t place = 0;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(place) : "r"(places + uint32_t(entry * 256)));
        const int32_t key = row.first_key + row.stride * place;
        if (!(two.x <= above)) *next++ = {two.x, key};
        if (!(two.y <= above)) *next++ = {two.y, key + row.stride};
      }
      set(h, low, at, is_lost ? kLost : total);
    }
  }

  // Of row kH, after a flush: how many candidates it has, or kAlone.
  template <int kH>
  __device__ __forceinline__ int32_t num_written() const {
    return written_[kH] == kLost ? device::kAlone : written_[kH];
  }

 private:
  static constexpr int32_t kLost = INT_MAX / 2;  // in place of the number of candidates

  __device__ __forceinline__ void set(int h, float level, uint32_t end, int32_t written) {
    const float above = written == kLost ? INFINITY : rule_.product_below(level);
    if (h == 0) {
      level_[0] = level, above_[0] = above, end_[0] = end, written_[0] = written;
    } else {
      level_[1] = level, above_[1] = above, end_[1] = end, written_[1] = written;
    }
  }

  // The bound that the largest score alone gives; -inf if there is none, or for softmax.
  __device__ __forceinline__ float start(const LaneList& list) const {
    float top = -INFINITY;
    list.for_each([&](float first, float second) { top = fmaxf(top, fmaxf(first, second)); });
    top = row_max(top);
    if (top == INFINITY || top == -INFINITY) return top;
    if (!rule_.has_sums()) return -INFINITY;
    return rule_.level(top) - 1.00001f / rule_.unit;
  }
  __device__ __forceinline__ float raise(const LaneList& list, float low) const {
    float raised = low;
    if (rule_.has_sums()) raised = raise_by_sums(list, low);
    if (rule_.has_ranks()) raised = fmaxf(raised, raise_by_rank(list, low));
    return raised;
  }
  __device__ __forceinline__ float raise_by_sums(const LaneList& list, float low) const {
    BoundSums<kPlain> sums[2];
    list.for_each([&](float first, float second) {
      sums[0].add(rule_, (fmaxf(rule_.level(first), low) - low) * rule_.unit);
      sums[1].add(rule_, (fmaxf(rule_.level(second), low) - low) * rule_.unit);
    });
    const BoundSums<kPlain> all = {row_sum(sums[0].weight + sums[1].weight),
                                   row_sum(sums[0].slope + sums[1].slope)};
    return low + __fdividef(all.step(rule_), rule_.unit);
  }
  // At least top_k entries are above the result, or it is `low`.
  __device__ __forceinline__ float raise_by_rank(const LaneList& list, float low) const {
    float top = -INFINITY;
    list.for_each([&](float first, float second) { top = fmaxf(top, fmaxf(first, second)); });
    top = row_max(top);
    if (!(top < INFINITY)) top = low;
    int32_t good = order_of(low), bad = order_of(rule_.level(top));
    constexpr int kRounds = 20;
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      const int32_t middle = (good & bad) + ((good ^ bad) >> 1);
      const float level = float_of_order(middle);
      float count = 0;
      list.for_each([&](float first, float second) {
        count +=
            (rule_.level(first) > level ? 1.f : 0.f) + (rule_.level(second) > level ? 1.f : 0.f);
      });
      const bool is_below = row_sum(count) >= float(rule_.top_k);
      good = is_below && middle > good ? middle : good;
      bad = is_below ? bad : middle;
    }
    return float_of_order(good);
  }

  const BoundRule<kPlain>& rule_;
  const uint32_t base_;
  float level_[2], above_[2];  // the bound as a level, and as a product
  uint32_t end_[2];
  int32_t written_[2];  // candidates so far; kLost: the row is left to others
};

}  // namespace keyhole::sm90
