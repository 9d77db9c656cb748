// src/kernels/sm90/entmax_lane_lists.cuh
// The lists of a warp: for each of its 16 rows, the products that are above the row's bound. Four
// lanes share a row; each has a list of its own of the columns that it computes, so that taking
// something in needs no other lane. An entry is two neighbouring products of which at least one is
// above the bound, and the first one's key.
//
//   products of row h (0, 1) of a lane    base + h * plane_bytes + 256 * entry        8 bytes
//   keys                                  base + 2 * plane_bytes + 256 * entry + 4 h  4 bytes
#pragma once

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
    for (int first = 0; first < most; first += 4) {
      float2 four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) four[i] = load(first + i);
#pragma unroll
      for (int i = 0; i < 4; ++i) visit(four[i].x, four[i].y);
    }
  }
};
__device__ __forceinline__ LaneList lane_list(uint32_t at, uint32_t end) {
  const int count = int(end - at) / 256;
  return {at, count, warp_uniform(int(__reduce_max_sync(~0u, unsigned(count))))};
}

template <class C, bool kPlain>
class LaneLists {
 public:
  static constexpr int plane = ScanShared<C>::plane_bytes;
  // The fullest a list may be before the next eight entries.
  static constexpr uint32_t kNearlyFull = (C::list_entries - 8) * 256;

  // base: of the warp's lists, and this lane's place in them.
  __device__ LaneLists(const BoundRule<kPlain>& rule, uint32_t base) : rule_(rule), base_(base) {}

  __device__ __forceinline__ void begin() {
    end_[0] = base_;
    end_[1] = base_ + plane;
    is_lost_[0] = is_lost_[1] = false;
  }
  // The first look, which uses the memory of the lists: slot `slot` gets two maxima of each row.
  __device__ __forceinline__ void store_look(int slot, const float (&first)[2],
                                             const float (&second)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      asm volatile(
          "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(base_ + uint32_t(h * plane + slot * 256)),
          "f"(first[h]), "f"(second[h])
          : "memory");
    }
  }
  __device__ __forceinline__ void begin_with_look(int num_slots) {
    begin();
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      const uint32_t at = base_ + uint32_t(h * plane);
      const LaneList list = {at, num_slots, num_slots};
      float low = start(list);
      // A maximum of +inf: nothing is above it, and the row is left to others.
      const bool is_lost = low == INFINITY;
      constexpr int kRounds = 4;
#pragma unroll 1
      for (int round = 0; round < kRounds; ++round) low = raise(list, low);
      set(h, is_lost ? INFINITY : low, at, is_lost);
    }
  }
  // A row that does not exist takes nothing in.
  template <int kH>
  __device__ __forceinline__ void close() {
    above_[kH] = INFINITY;
  }

  // Eight entries more will fit each list after this.
  __device__ __forceinline__ void make_room() {
    const bool is_full[2] = {end_[0] - base_ > kNearlyFull, end_[1] - base_ - plane > kNearlyFull};
    if (!__any_sync(~0u, is_full[0] || is_full[1])) return;
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      if (__any_sync(~0u, h == 0 ? is_full[0] : is_full[1])) clean_up(h);
    }
  }

  // Takes in two neighbouring products of row kH, if one of them is above the bound.
  template <int kH>
  __device__ __forceinline__ void take(float first, float second, uint32_t key) {
    // gtu: greater or NaN, so that a NaN is not lost.
    asm volatile(
        "{\n.reg .pred p;\nsetp.gtu.f32 p, %1, %3;\nsetp.gtu.or.f32 p, %2, %3, p;\n"
        "@p st.shared.v2.f32 [%0], {%1, %2};\n@p st.shared.u32 [%0 + %5], %4;\n"
        "@p add.u32 %0, %0, 256;\n}"
        : "+r"(end_[kH])
        : "f"(first), "f"(second), "f"(above_[kH]), "r"(key), "n"(kH == 0 ? 2 * plane : plane + 4)
        : "memory");
  }

  // Writes the lists of row kH to `to`, which has room for `capacity` candidates; returns their
  // number, or kAlone if they do not fit. key_of: from a place in the tile lists to a key.
  template <int kH, class KeyOf>
  __device__ __forceinline__ int32_t write(device::Candidate* to, int32_t capacity, bool is_wanted,
                                           KeyOf key_of) {
    const uint32_t at = base_ + uint32_t(kH * plane), keys = keys_of(kH);
    const LaneList list = lane_list(at, end_[kH]);
    float low = level_[kH];
    if (__any_sync(~0u, low == -INFINITY)) low = fmaxf(low, start(list));
    low = raise(list, low);
    low = raise(list, low);
    const float above = rule_.product_below(low);
    int own = 0;
    list.for_each([&](float first, float second) {
      own += (!(first <= above) ? 1 : 0) + (!(second <= above) ? 1 : 0);
    });
    int before = own;  // of this lane and those before it
    const int lane = int(threadIdx.x) % 4;
    int other = __shfl_up_sync(~0u, before, 1, 4);
    before += lane >= 1 ? other : 0;
    other = __shfl_up_sync(~0u, before, 2, 4);
    before += lane >= 2 ? other : 0;
    const int total = __shfl_sync(~0u, before, 3, 4);
    const bool is_lost = row_max(is_lost_[kH] ? 1.f : 0.f) > 0;
    if (is_lost || total > capacity) is_wanted = false;
    device::Candidate* next = to + (before - own);
    for (int entry = 0; entry < list.most; ++entry) {
      const float2 two = list.load(entry);
      uint32_t key = 0;
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(key) : "r"(at + uint32_t(entry * 256) + keys));
      if (is_wanted && !(two.x <= above)) *next++ = {two.x, key_of(key)};
      if (is_wanted && !(two.y <= above)) *next++ = {two.y, key_of(key + 1)};
    }
    return is_lost || total > capacity ? device::kAlone : total;
  }

 private:
  static __device__ __forceinline__ uint32_t keys_of(int h) {
    return uint32_t(h == 0 ? 2 * plane : plane + 4);
  }
  __device__ __forceinline__ void set(int h, float level, uint32_t end, bool is_lost) {
    const float above = is_lost ? INFINITY : rule_.product_below(level);
    if (h == 0) {
      level_[0] = level, above_[0] = above, end_[0] = end, is_lost_[0] = is_lost_[0] || is_lost;
    } else {
      level_[1] = level, above_[1] = above, end_[1] = end, is_lost_[1] = is_lost_[1] || is_lost;
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

  // Raises the bound of row h and drops what is below it. If that does not help, what is left is
  // dealt evenly to the four lanes; if that does not help either, the row is lost: others find it.
  __device__ __forceinline__ void clean_up(int h) {
    const uint32_t at = base_ + uint32_t(h * plane), keys = keys_of(h);
    LaneList list = lane_list(at, h == 0 ? end_[0] : end_[1]);
    float low = h == 0 ? level_[0] : level_[1];
    if (__any_sync(~0u, low == -INFINITY)) low = fmaxf(low, start(list));
    constexpr int kRounds = 2;
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) low = raise(list, low);
    uint32_t end = compact(list, keys, rule_.product_below(low));
    constexpr uint32_t kUneven = (C::list_entries - 12) * 256;
    if (__any_sync(~0u, end - at > kUneven)) {
      list = lane_list(at, end);
      low = raise(list, low);
      end = deal(list, keys, rule_.product_below(low));
    }
    const bool is_lost = row_max(end - at > kNearlyFull || !(low < INFINITY) ? 1.f : 0.f) > 0;
    set(h, is_lost ? INFINITY : low, is_lost ? at : end, is_lost);
  }
  // Drops what is not above; returns the new end.
  __device__ __forceinline__ uint32_t compact(const LaneList& list, uint32_t keys,
                                              float above) const {
    uint32_t to = list.at;
    for (int first = 0; first < list.most; first += 4) {
      float2 four[4];
      uint32_t key[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        four[i] = list.load(first + i);
        asm volatile("ld.shared.u32 %0, [%1];"
                     : "=r"(key[i])
                     : "r"(list.at + uint32_t((first + i) * 256) + keys));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.gtu.f32 p, %1, %3;\nsetp.gtu.or.f32 p, %2, %3, p;\n"
            "@p st.shared.v2.f32 [%0], {%1, %2};\n@p st.shared.u32 [%5], %4;\n"
            "@p add.u32 %0, %0, 256;\n}"
            : "+r"(to)
            : "f"(four[i].x), "f"(four[i].y), "f"(above), "r"(key[i]), "r"(to + keys)
            : "memory");
      }
    }
    return to;
  }
  // The same, with entries dealt to the four lanes of the row in turn.
  __device__ __forceinline__ uint32_t deal(const LaneList& list, uint32_t keys, float above) const {
    const int lane = int(threadIdx.x) % 32;
    const uint32_t row = list.at - uint32_t(lane % 4 * 8);
    int count = 0;
#pragma unroll 1
    for (int entry = 0; entry < list.most; ++entry) {
      const float2 two = list.load(entry);
      uint32_t key = 0;
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(key)
                   : "r"(list.at + uint32_t(entry * 256) + keys));
      const bool stays = entry < list.count && (!(two.x <= above) || !(two.y <= above));
      const uint32_t staying = __ballot_sync(~0u, stays) >> (lane & 28) & 15;
      const int place = count + __popc(staying & ((1u << lane % 4) - 1));
      count += __popc(staying);
      if (stays) {
        const uint32_t to = row + uint32_t(place / 4 * 256 + place % 4 * 8);
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(two.x), "f"(two.y)
                     : "memory");
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + keys), "r"(key) : "memory");
      }
      __syncwarp();
    }
    return list.at + uint32_t((count + 3 - lane % 4) / 4 * 256);
  }

  const BoundRule<kPlain>& rule_;
  const uint32_t base_;
  float level_[2], above_[2];  // the bound as a level, and as a product
  uint32_t end_[2];
  bool is_lost_[2];
};

}  // namespace keyhole::sm90
