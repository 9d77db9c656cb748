// src/kernels/sm90/wide_backward_sums.cuh
// dv and dk: the two warpgroups that keep a sum (wide_backward_shared.cuh). They are alike; this is
// that of the weights, and in brackets the other:
//
//   products = k q' [v dout'] | weights [ds], stored | dv += weights dout [dk += ds q] | ...
//
// The sum of a step and the products of the next are issued together and awaited together. While a
// warpgroup computes weights or ds, the products of the other two keep the tensor cores busy. The
// sum goes first: its operands are there, and those of the next step arrive meanwhile.
#pragma once

#include "kernels/sm90/backward_turns.cuh"
#include "kernels/sm90/softmax_keys.cuh"
#include "kernels/sm90/wide_backward_shared.cuh"
#include "kernels/sm90/write_rows.cuh"

namespace keyhole::sm90 {

template <class T, class C, class Rule, Half kHalf, bool kTurns>
class WideSum {
 public:
  __device__ WideSum(const BackwardParams& params, WideShared<C>& shared)
      : p_(params), shared_(shared) {}

  // Processes one work item after another.
  __device__ __forceinline__ void follow() {
    if constexpr (kHalf == Half::ds) arrive_at<kPair>(kSlopesEmpty);
    for (uint32_t item = 0;; ++item) {
      const uint32_t slot = item % kSlots;
      shared_.await(shared_.is_planned[slot], item / kSlots % 2);
      const int steps = warp_uniform(shared_.planned[slot].num_steps);  // the compiler must know
      if (steps < 0) break;
      begin();
      if (steps > 0) mainloop(steps);
      const bool is_bad =
          kHalf == Half::weights
              ? finish(slot, 1, p_.dv, p_.sizes.v_head_dim, p_.slots.dv, p_.sums.dv)
              : finish(slot, p_.sizes.scale, p_.dk, p_.sizes.head_dim, p_.slots.dk, p_.sums.dk);
      if (is_bad) *p_.found_nonfinite = 1;
      __syncwarp();
      arrive_as_warp(shared_.planned_empty[slot]);
    }
    // Every arrival is met before the kernel ends.
    meet_at<kPair>(kHalf == Half::weights ? kSlopesEmpty : kDsEmpty);
  }

 private:
  using Shared = WideShared<C>;
  using Keys = typename Shared::Keys;
  using Queries = typename Shared::Queries;
  using Pairs = typename Shared::Pairs;
  using Products = float[C::tile_q / 2];
  static constexpr int kD = C::head_dim, kBlocks = C::tile_q / 16;  // of 16 queries
  static constexpr int kAt = int(kHalf), kOther = 1 - kAt;
  static constexpr int kStages = C::stages;
  static constexpr int kColumns = C::sum_columns, kParts = kD / kColumns;
  static_assert(kColumns * kParts == kD);

  static __device__ __forceinline__ int thread() {
    return int(device::thread_index() % kWarpgroup);
  }
  static __device__ __forceinline__ int lane() { return thread() % 32; }

  __device__ __forceinline__ void mainloop(int steps) {
    shared_.await(shared_.halves[kAt].keys_full, items_++ % 2);
    {
      Products products;  // of the first step
      multiply(products);
      await_products<0>();
      is_ready(products);
      make_pairs(products, steps == 1);
    }
    for (int left = steps - 1; left > 0; --left) {
      Products products;
      add_pairs();
      ++step_;
      multiply(products);
      await_products<0>();
      sum_is_ready();
      is_ready(products);
      release_sum();
      make_pairs(products, left == 1);
    }
    add_pairs();
    ++step_;
    await_products<0>();
    sum_is_ready();
    release_sum();
  }
  // products = keys . rows' of step_, both [row][head_dim].
  __device__ __forceinline__ void multiply(Products& products) {
    const int stage = int(step_ % kStages);
    shared_.await(shared_.halves[kAt].is_full[stage], step_ / kStages % 2);
    const uint64_t left = operand_anew(smem_address(shared_.tiles[kAt].keys), Keys::bytes);
    const uint64_t right =
        operand_anew(smem_address(shared_.tiles[kAt].rows[stage]), Queries::bytes);
    begin_products();
    Product<T>::template begin_of_shared<false, false>(products, left, right);
#pragma unroll
    for (int d = 1; d < kD / 16; ++d) {
      Product<T>::template of_shared<false, false, false>(
          products, further(left, d / 4 * Keys::bytes + d % 4 * 32),
          further(right, d / 4 * Queries::bytes + d % 4 * 32));
    }
    commit_products();
  }
  // sum += pairs . rows of step_ of the other half.
  __device__ __forceinline__ void add_pairs() {
    const int stage = int(step_ % kStages);
    shared_.await(shared_.halves[kOther].is_full[stage], step_ / kStages % 2);
    const uint64_t left = operand_anew(smem_address(shared_.tiles[kAt].pairs), Pairs::bytes);
    const uint64_t right =
        operand_anew(smem_address(shared_.tiles[kOther].rows[stage]), Queries::bytes);
    begin_products();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        Product<T>::template of_shared<false, false, true>(
            sum_[i], further(left, b * 32),
            further(right, i * (kColumns / 64) * Queries::bytes + b * 16 * 128));
      }
    }
    commit_products();
  }
  __device__ __forceinline__ void begin() {
#pragma unroll
    for (auto& part : sum_) {
#pragma unroll
      for (float& sum : part) sum = 0;
    }
    sum_is_ready();
  }
  __device__ __forceinline__ void sum_is_ready() {
#pragma unroll
    for (auto& part : sum_) is_ready(part);
  }
  // The rows that the sum of the step before has used.
  __device__ __forceinline__ void release_sum() {
    arrive_as_warp(shared_.halves[kOther].is_empty[(step_ - 1) % kStages]);
  }

  // From the products of step_ to pairs in shared memory.
  __device__ __forceinline__ void make_pairs(const Products& products, bool is_last) {
    auto& half = shared_.halves[kAt];
    const int stage = int(step_ % kStages);
    if (is_last) arrive_as_warp(half.keys_empty);
    const int32_t bitmap = *const_cast<const volatile int32_t*>(&half.bitmap[stage]);
    const uint32_t* const words =
        reinterpret_cast<const uint32_t*>(p_.view.t_bitmaps) + int64_t{bitmap} * kWarpgroup;
    const bool is_partial = bitmap != kFull;
    const uint32_t bits = is_partial ? words[thread()] : 0;
    if constexpr (kHalf == Half::weights) {
      meet_at<kPair>(kSlopesEmpty);
    } else {
      meet_at<kPair>(kSlopesFull);
      meet_at<kPair>(kDsEmpty);
    }
    if (is_partial) {
      store_pairs<true>(products, bits, stage);
    } else {
      store_pairs<false>(products, bits, stage);
    }
    arrive_as_warp(half.is_empty[stage]);
    publish_stores();
    arrive_at<kPair>(kHalf == Half::weights ? kSlopesFull : kSlopesEmpty);
    meet_at<kWarpgroup>(kPairsStored + kAt);
    if constexpr (kHalf == Half::ds) arrive_at<kPair>(kDsFull);
  }
  template <bool kIsMasked>
  __device__ __forceinline__ void store_pairs(const Products& products, uint32_t bits, int stage) {
    const uint32_t numbers_at = smem_address(&shared_.halves[kAt].numbers[stage][lane() % 4 * 2]);
    const uint32_t slopes_at = smem_address(&shared_.slopes[0][thread()]);
    const uint32_t rows_at = own_rows();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint32_t packed[4];
#pragma unroll
      for (int j = 2 * b; j < 2 * b + 2; ++j) {
        const float2 of_row = device::load_shared_floats(numbers_at + uint32_t(32 * j));
        const uint32_t at = slopes_at + uint32_t(j * sizeof(shared_.slopes[0]));
        float four[4];
        if constexpr (kHalf == Half::weights) {
          make_weights<kIsMasked>(&products[4 * j], bits >> (4 * j), of_row, four, at);
        } else {
          make_ds<kIsMasked>(&products[4 * j], bits >> (4 * j), of_row, four, at);
        }
        packed[j % 2 * 2] = device::pack_two<T>(four[0], four[1]);
        packed[j % 2 * 2 + 1] = device::pack_two<T>(four[2], four[3]);
      }
      store_matrices(rows_at ^ uint32_t(b * 32), packed);
    }
  }
  // Four weights; stores their slopes.
  template <bool kIsMasked>
  __device__ __forceinline__ void make_weights(const float* products, uint32_t bits,
                                               const float2& lse2, float (&weights)[4],
                                               uint32_t slopes_at) const {
    const Rule rule{p_.rule};
    float slopes[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float of_row = e % 2 == 0 ? lse2.x : lse2.y;
      PairTerms terms;
      if constexpr (Rule::kPacksAtOnce) {
        terms = rule.terms(rule.keep(products[e]), of_row);
      } else {
        const float weight = rule.keep(products[e], of_row);
        terms = {weight, rule.slope(weight)};
      }
      const bool attends = !kIsMasked || (bits & 1u << e) != 0;
      weights[e] = attends ? terms.weight : 0;
      slopes[e] = attends ? terms.slope : 0;
    }
    device::store_shared_vector(slopes_at,
                                {__float_as_uint(slopes[0]), __float_as_uint(slopes[1]),
                                 __float_as_uint(slopes[2]), __float_as_uint(slopes[3])});
  }
  // Four of ds, without the scale: that is applied to dk and dq at the end.
  template <bool kIsMasked>
  __device__ __forceinline__ void make_ds(const float* products, uint32_t bits, const float2& delta,
                                          float (&ds)[4], uint32_t slopes_at) const {
    const uint4 words = device::load_shared_vector(slopes_at);
    const float slopes[4] = {__uint_as_float(words.x), __uint_as_float(words.y),
                             __uint_as_float(words.z), __uint_as_float(words.w)};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      ds[e] = slopes[e] * (products[e] - (e % 2 == 0 ? delta.x : delta.y));
      // A product may be NaN where no pair attends.
      if (kIsMasked && (bits & 1u << e) == 0) ds[e] = 0;
    }
  }
  // The address this lane gives to stmatrix: rows of this warp in pairs [key][query]. Block b is at
  // address ^ b * 32.
  __device__ __forceinline__ uint32_t own_rows() const {
    static_assert(Pairs::count == 1);
    const uint32_t row = uint32_t(thread() / 32 * 16 + lane() % 16);
    return smem_address(shared_.tiles[kAt].pairs) + row * 128 +
           (uint32_t(lane()) / 16 ^ row % 8) * 16;
  }

  // Epilogue: the sum is written, or stored in a slot of its own, or added to sums that several
  // CTAs share. True when something written is not finite.
  __device__ __forceinline__ bool finish(uint32_t slot, float scale, const device::DeviceTensor& to,
                                         int columns, float* slots, float* all_sums) const {
    const device::Work& work = shared_.planned[slot].work;
    const device::KeyRows keys = device::key_rows<C::tile_k, C::tile_k>(p_, work, 0);
    const int first = thread() / 32 * 16;  // of the warp
    const device::KeySums sums =
        device::key_sums<C::tile_k, C::tile_k>(p_, work, keys, 0, slots, all_sums, columns);
    if (sums.rows.first == nullptr) {
      const device::TileRows<T> rows = keys.of<T>(to, p_.view.stride, columns);
      bool is_bad = false;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        is_bad = write_rows(sum_[i], scale, rows.first + first * rows.step + i * kColumns,
                            rows.step, rows.count - first, columns - i * kColumns, lane()) ||
                 is_bad;
      }
      return is_bad;
    }
    const auto meet = [] { meet_at<kWarpgroup>(kPairsStored + kAt); };
    if constexpr (kTurns) {
      await_turn_of_head(p_, shared_.planned[slot], kAt, thread() == 0, meet);
    }
    const int row = first + lane() / 4;
#pragma unroll
    for (int i = 0; i < kD / 2; i += 2) {
      const float* const two = &sum_[i / (kColumns / 2)][i % (kColumns / 2)];
      sums.take(row + i / 2 % 2 * 8, i / 4 * 8, lane() % 4 * 2, scale * two[0], scale * two[1]);
    }
    if constexpr (kTurns) {
      end_turn_of_head(p_, shared_.planned[slot], kAt, thread() == 0, meet);
    }
    return false;
  }

  const BackwardParams& p_;
  Shared& shared_;
  uint32_t items_ = 0;  // with steps
  uint32_t step_ = 0;   // over all items
  float sum_[kParts][kColumns / 2];
};

}  // namespace keyhole::sm90
