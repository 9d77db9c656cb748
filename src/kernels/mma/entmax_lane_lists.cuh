// src/kernels/mma/entmax_lane_lists.cuh
// The lists of a warp: of its 16 rows, the products that are above the row's bound. Four lanes
// share a row, and a lane has two rows: each lane has one list of its own, so that taking something
// in needs no other lane. An entry is what a lane has of a pair of neighbouring keys: two products
// of each row, of which at least one is above its bound, and the place of the first key.
//
// Before a list is full, the bounds are raised by what is in it, and what is above them moves on to
// the candidates of the rows in global memory. Candidates that do not fit are made fewer by a bound
// that all of the row's candidates give. A row in which this does not help is lost to the scan: it
// is left to device/entmax_left_rows.cu.
//
//   slot s of the lists    32 x 16 bytes of products, 32 x 4 bytes of places: kSlotBytes
#pragma once

#include "base/ordered_bits.h"
#include "kernels/mma/entmax_bound.cuh"

namespace keyhole::mma {

inline constexpr int kSlotBytes = 32 * (16 + 4);

__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// Two products of each row of a lane.
struct FourProducts {
  float of_row[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
};

// Four products at a time: of a list, or maxima of a look.
struct ListedProducts {
  uint32_t at;
  int count, most;  // most: of any lane of the warp

  __device__ __forceinline__ FourProducts load(int slot) const {
    FourProducts four;
    asm volatile(
        "{\n.reg .pred p;\nsetp.lt.s32 p, %5, %6;\n@p ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
        : "+f"(four.of_row[0][0]), "+f"(four.of_row[0][1]), "+f"(four.of_row[1][0]),
          "+f"(four.of_row[1][1])
        : "r"(at + uint32_t(slot) * 512), "r"(slot), "r"(count)
        : "memory");
    return four;
  }
  // Calls visit(four products) for all slots, and with -inf for those that only other lanes have.
  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) const {
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int first = 0; first < most; first += kAtOnce) {
      FourProducts fours[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) fours[i] = load(first + i);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) visit(fours[i]);
    }
  }
};

// Where the candidates of a row go.
struct CandidateRow {
  device::Candidate* entries;
  int32_t capacity;
  int32_t first_key, stride;  // place i of the row is key first_key + stride * i

  // Calls visit(place, product, key) for `count` candidates, and with -inf up to `most`, the
  // largest count of the warp's rows. The four lanes of the row take them in turn; several are
  // loaded before the first visit, which may write to places that have been loaded.
  template <class Visit>
  __device__ __forceinline__ void for_each(int count, int most, Visit visit) const {
    constexpr int kAtOnce = 4;
    const int lane = int(threadIdx.x) % 4;
#pragma unroll 1
    for (int first = 0; first < most; first += 4 * kAtOnce) {
      device::Candidate candidate[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int place = first + 4 * i + lane;
        candidate[i] = {-INFINITY, 0};
        if (place < count) candidate[i] = entries[place];
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        visit(first + 4 * i + lane, candidate[i].product, candidate[i].key);
      }
    }
  }
};

// kSlots: of the warp's lists in shared memory, kSlots * kSlotBytes bytes. kIsRounded: products are
// those of rounded rows.
template <int kSlots, bool kPlain, bool kIsRounded>
class LaneLists {
 public:
  // base: of the warp's lists in shared memory.
  __device__ LaneLists(const ScanRule<kPlain, kIsRounded>& rule, uint32_t base)
      : rule_(rule), base_(base + threadIdx.x % 32 * 16), places_(base + kSlots * 512 - base / 4) {}

  // The maxima of a tile of the look, one of each row. They use the memory of the lists.
  __device__ __forceinline__ void store_look(int number, const float (&top)[2]) {
    const uint32_t at = base_ + uint32_t(number / 2 % kLookSlots * (32 * 16) + number % 2 * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float before = -INFINITY;
      if (number >= 2 * kLookSlots) {
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(before) : "r"(at + 8 * h) : "memory");
      }
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + 8 * h), "f"(fmaxf(before, top[h]))
                   : "memory");
    }
  }
  // Before begin(), which closes rows whose margin is infinite. row_of(h): the row that is this
  // lane's h-th, or negative: there is none.
  template <class RowOf>
  __device__ __forceinline__ void load_margins(RowOf row_of) {
    if constexpr (kIsRounded) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t row = row_of(h);
        margins_.of_row[h] = row >= 0 ? rule_.margin[row] : INFINITY;
      }
    }
  }
  // Sets the bounds from a look at so many tiles; the lists are empty.
  __device__ __forceinline__ void begin(int num_looks) {
    const float nothing[2] = {-INFINITY, -INFINITY};
    if (num_looks % 2 != 0 && num_looks < 2 * kLookSlots) store_look(num_looks, nothing);
    const int slots = min((num_looks + 1) / 2, kLookSlots);
    const ListedProducts look = {base_, slots, slots};
    start(look, level_);
    const int rounds = rule_.has_sums() ? 4 : 1;  // a rank is found at once
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) raise(look, level_);
    above_[0] = above_[1] = -INFINITY;
    set_bounds();
    written_[0] = written_[1] = 0;
    clear();
    if constexpr (kIsRounded) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (!(margins_.of_row[h] < INFINITY)) close(h);
      }
    }
  }
  // After begin(): closes rows whose candidates will not fit, as far as the look can tell. A
  // maximum is that of a group of keys. If there are that many candidates in all, so many groups on
  // average have none.
  __device__ __forceinline__ void close_long_rows(int num_looks) {
    constexpr float kTooMany = 256;
    const int slots = min((num_looks + 1) / 2, kLookSlots);
    const float groups = 4.f * float(min(num_looks, 2 * kLookSlots));
    const float most_without = groups * expf(-kTooMany / groups);
    float with[2] = {0, 0};
    ListedProducts{base_, slots, slots}.for_each([&](const FourProducts& four) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        with[h] += (four.of_row[h][0] > above_[h] ? 1.f : 0.f) +
                   (four.of_row[h][1] > above_[h] ? 1.f : 0.f);
      }
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float without = groups - row_sum(with[h]);
      if (without + 0.5f < most_without) close(h);
    }
  }
  // The row takes nothing in any more. Its bound stays a bound.
  __device__ __forceinline__ void close(int h) {
    above_[h] = INFINITY;
    written_[h] = 0;
  }
  __device__ __forceinline__ bool is_closed(int h) const { return above_[h] == INFINITY; }

  // So many entries are taken in before the next look at the room that is left.
  static constexpr int kStep = 4;
  // Takes in four products, if one of them is above its bound. Their place is first + offset: a sum
  // that the compiler must not compute early, for all of a tile, and keep.
  __device__ __forceinline__ void take(float a, float b, float c, float d, uint32_t first,
                                       uint32_t offset) {
    // gtu: greater or NaN, so that a NaN is not lost. The next address is a register of its own:
    // one that a store still reads cannot be changed.
    const uint32_t at = next_;
    asm volatile(
        "{\n.reg .pred p;\n.reg .u32 place, at_place, further;\nadd.u32 place, %7, %8;\n"
        "setp.gtu.f32 p, %1, %5;\nsetp.gtu.or.f32 p, %2, %5, p;\n"
        "setp.gtu.or.f32 p, %3, %6, p;\nsetp.gtu.or.f32 p, %4, %6, p;\n"
        "shr.u32 at_place, %9, 2;\nadd.u32 at_place, at_place, %10;\nadd.u32 further, %9, 512;\n"
        "selp.u32 %0, further, %9, p;\n"
        "@p st.shared.v4.f32 [%9], {%1, %2, %3, %4};\n@p st.shared.u32 [at_place], place;\n}"
        : "=r"(next_)
        : "f"(a), "f"(b), "f"(c), "f"(d), "f"(above_[0]), "f"(above_[1]), "r"(first), "r"(offset),
          "r"(at), "r"(places_)
        : "memory");
  }
  // Whether a lane of the warp may not have room for kStep more.
  __device__ __forceinline__ bool is_any_full() const {
    return __any_sync(~0u, next_ - base_ > uint32_t((kSlots - kStep) * 512));
  }

  // Whether this lane may be full before long.
  __device__ __forceinline__ bool is_nearly_full() const {
    return next_ - base_ > uint32_t((kSlots - kStep - kAhead) * 512);
  }

  // Raises the bounds and moves what is above them to the candidates. to: of this lane's rows.
  // is_early: most keys are still to come. A row whose candidates do not fit by then is closed at
  // once: it has too many keys of weight, or so many that making room would be repeated.
  __device__ __forceinline__ void move(const CandidateRow (&to)[2], bool is_early) {
    const ListedProducts list = listed();
    raise_by_list(list);
    Shares shares = share(list);
    if (!is_early &&
        __any_sync(~0u, shares.total[0] > to[0].capacity || shares.total[1] > to[1].capacity)) {
      make_room(list, to, shares);
      shares = share(list);
    }
    uint32_t next[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      next[h] = uint32_t(shares.first[h]);
      written_[h] = shares.total[h];
      if (shares.total[h] > to[h].capacity) close(h);
    }
    int slot = 0;
    list.for_each([&](const FourProducts& four) {
      const int32_t key = to[0].first_key + to[0].stride * place_of(list, slot++);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float product = four.of_row[i / 2][i % 2];
        if (!is_kept(i / 2, product)) continue;
        to[i / 2].entries[next[i / 2]++] = {product, i % 2 == 0 ? key : key + to[0].stride};
      }
    });
    __syncwarp();
    clear();
  }
  // After move(): the number of candidates of row h, or kAlone.
  __device__ __forceinline__ int32_t num_candidates(int h) const {
    return is_closed(h) ? device::kAlone : written_[h];
  }
  // A lower bound of lambda of row h.
  __device__ __forceinline__ float lambda_bound(int h) const { return rule_.lambda_at(level_[h]); }

 private:
  static constexpr int kLookSlots = 8;
  static constexpr int kAhead = 3;  // entries of a lane in most tiles
  static_assert(kLookSlots <= kSlots && kSlots > kStep + kAhead);

  static __device__ __forceinline__ int lane() { return int(threadIdx.x) % 32; }
  __device__ __forceinline__ void clear() { next_ = base_; }
  __device__ __forceinline__ ListedProducts listed() const {
    const int own = int((next_ - base_) / 512);
    return {base_, own, int(__reduce_max_sync(~0u, unsigned(own)))};
  }
  __device__ __forceinline__ int32_t place_of(const ListedProducts& list, int slot) const {
    int32_t place = 0;
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %2, %3;\n@p ld.shared.s32 %0, [%1];\n}"
                 : "+r"(place)
                 : "r"((base_ + uint32_t(slot) * 512) / 4 + places_), "r"(slot), "r"(list.count)
                 : "memory");
    return place;
  }
  // Where the products above the bounds go.
  struct Shares {
    int first[2];  // place of this lane's first one
    int total[2];  // candidates of the row, with those that are there
  };
  __device__ __forceinline__ Shares share(const ListedProducts& list) const {
    int own[2] = {0, 0};
    list.for_each([&](const FourProducts& four) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        own[h] += (is_kept(h, four.of_row[h][0]) ? 1 : 0) + (is_kept(h, four.of_row[h][1]) ? 1 : 0);
      }
    });
    Shares shares;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int up_to = own[h];  // of this lane and those before it
      int other = __shfl_up_sync(~0u, up_to, 1, 4);
      up_to += lane() % 4 >= 1 ? other : 0;
      other = __shfl_up_sync(~0u, up_to, 2, 4);
      up_to += lane() % 4 >= 2 ? other : 0;
      shares.first[h] = written_[h] + up_to - own[h];
      shares.total[h] = written_[h] + __shfl_sync(~0u, up_to, 3, 4);
    }
    return shares;
  }
  // A NaN is kept; of a closed row nothing is.
  __device__ __forceinline__ bool is_kept(int h, float product) const {
    return above_[h] < INFINITY && !(product <= above_[h]);
  }
  __device__ __forceinline__ void set_bounds() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (is_closed(h)) continue;
      above_[h] = level_[h] < INFINITY ? product_below(h, level_[h]) : INFINITY;
    }
  }
  // Products of row h that are not above the result have no weight.
  __device__ __forceinline__ float product_below(int h, float level) const {
    if constexpr (kIsRounded) {
      const float margin = h == 0 ? margins_.of_row[0] : margins_.of_row[1];
      return rule_.product_below(level - margin) - margin;
    } else {
      return rule_.product_below(level);
    }
  }
  __device__ __forceinline__ void raise_by_list(const ListedProducts& list) {
    if (__any_sync(~0u, level_[0] == -INFINITY || level_[1] == -INFINITY)) {
      float low[2];
      start(list, low);
#pragma unroll
      for (int h = 0; h < 2; ++h) level_[h] = fmaxf(level_[h], low[h]);
    }
    raise(list, level_);
    set_bounds();
  }
  // Rows whose candidates do not fit: what all of them say of the bound, and what is below it.
  __device__ __forceinline__ void make_room(const ListedProducts& list, const CandidateRow (&to)[2],
                                            const Shares& shares) {
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      const CandidateRow row = h == 0 ? to[0] : to[1];
      const bool is_long = (h == 0 ? shares.total[0] : shares.total[1]) > row.capacity;
      if (!__any_sync(~0u, is_long)) continue;
      const int count = is_long ? (h == 0 ? written_[0] : written_[1]) : 0;
      const int most = int(__reduce_max_sync(~0u, unsigned(count)));
      float low = h == 0 ? level_[0] : level_[1];
      if (rule_.has_sums()) {
        constexpr int kRounds = 3;
#pragma unroll 1
        for (int round = 0; round < kRounds; ++round) {
          BoundSums<kPlain> sums;
          const auto add = [&](float product) {
            sums.add(rule_, (fmaxf(rule_.level(product), low) - low) * rule_.unit);
          };
          row.for_each(count, most, [&](int, float product, int32_t) { add(product); });
#pragma unroll 1
          for (int slot = 0; slot < list.count; ++slot) {
            const FourProducts four = list.load(slot);
            add(h == 0 ? four.of_row[0][0] : four.of_row[1][0]);
            add(h == 0 ? four.of_row[0][1] : four.of_row[1][1]);
          }
          __syncwarp();
          const BoundSums<kPlain> all = {row_sum(sums.weight), row_sum(sums.slope)};
          low += __fdividef(all.step(rule_), rule_.unit);
        }
      }
      const float above = product_below(h, low);
      int kept = 0;
      row.for_each(count, most, [&](int place, float product, int32_t key) {
        const bool is_above = place < count && !(product <= above);
        const uint32_t all = __ballot_sync(~0u, is_above) >> (lane() / 4 * 4) & 15;
        const int before = __popc(all & ((1u << lane() % 4) - 1));
        if (is_above) row.entries[kept + before] = {product, key};
        kept += __popc(all);
      });
      __syncwarp();
      if (!is_long) continue;
      if (h == 0) {
        level_[0] = low, above_[0] = above, written_[0] = kept;
      } else {
        level_[1] = low, above_[1] = above, written_[1] = kept;
      }
    }
  }

  // The bounds that the largest products alone give; -inf if there are none, or for softmax.
  template <class Source>
  __device__ __forceinline__ void start(const Source& source, float (&low)[2]) const {
    largest(source, low);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (low[h] == INFINITY || low[h] == -INFINITY) continue;
      low[h] = rule_.has_sums() ? rule_.level(low[h]) - 1.00001f / rule_.unit : -INFINITY;
    }
  }
  template <class Source>
  __device__ __forceinline__ void largest(const Source& source, float (&top)[2]) const {
    top[0] = top[1] = -INFINITY;
    source.for_each([&](const FourProducts& four) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        top[h] = fmaxf(top[h], fmaxf(four.of_row[h][0], four.of_row[h][1]));
      }
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) top[h] = row_max(top[h]);
  }
  template <class Source>
  __device__ __forceinline__ void raise(const Source& source, float (&low)[2]) const {
    float raised[2] = {low[0], low[1]};
    if (rule_.has_sums()) raise_by_sums(source, low, raised);
    if (rule_.has_ranks()) raise_by_rank(source, low, raised);
#pragma unroll
    for (int h = 0; h < 2; ++h) low[h] = raised[h];
  }
  template <class Source>
  __device__ __forceinline__ void raise_by_sums(const Source& source, const float (&low)[2],
                                                float (&raised)[2]) const {
    BoundSums<kPlain> sums[2][2];
    source.for_each([&](const FourProducts& four) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float over = fmaxf(rule_.level(four.of_row[h][i]), low[h]) - low[h];
          sums[h][i].add(rule_, over * rule_.unit);
        }
      }
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const BoundSums<kPlain> all = {row_sum(sums[h][0].weight + sums[h][1].weight),
                                     row_sum(sums[h][0].slope + sums[h][1].slope)};
      raised[h] = fmaxf(raised[h], low[h] + __fdividef(all.step(rule_), rule_.unit));
    }
  }
  // At least top_k products are above the result, or it is as before.
  template <class Source>
  __device__ __forceinline__ void raise_by_rank(const Source& source, const float (&low)[2],
                                                float (&raised)[2]) const {
    float top[2];
    largest(source, top);
    uint32_t good[2], bad[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      good[h] = ordered_bits(low[h]);
      bad[h] = ordered_bits(rule_.level(top[h] < INFINITY ? top[h] : low[h]));
    }
    constexpr int kRounds = 20;
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      uint32_t middle[2];
      float level[2], count[2] = {0, 0};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        middle[h] = (good[h] & bad[h]) + ((good[h] ^ bad[h]) / 2);
        level[h] = number_of_bits<float>(middle[h]);
      }
      source.for_each([&](const FourProducts& four) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          count[h] += (rule_.level(four.of_row[h][0]) > level[h] ? 1.f : 0.f) +
                      (rule_.level(four.of_row[h][1]) > level[h] ? 1.f : 0.f);
        }
      });
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool is_below = row_sum(count[h]) >= float(rule_.top_k);
        good[h] = is_below && middle[h] > good[h] ? middle[h] : good[h];
        bad[h] = is_below ? bad[h] : middle[h];
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) raised[h] = fmaxf(raised[h], number_of_bits<float>(good[h]));
  }

  const ScanRule<kPlain, kIsRounded>& rule_;
  const uint32_t base_;    // of this lane
  uint32_t next_;          // where the next entry goes
  const uint32_t places_;  // the place of the entry at x is at x / 4 + places_
  int32_t written_[2];     // candidates so far
  // The bounds as levels, and as products. A product +inf: the row is left to others, as one is in
  // which a product is +inf.
  float level_[2], above_[2];
  Margins<kIsRounded> margins_;
};

}  // namespace keyhole::mma
