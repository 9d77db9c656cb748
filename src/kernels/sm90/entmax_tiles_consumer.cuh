// src/kernels/sm90/entmax_tiles_consumer.cuh
// The consumer warpgroups of entmax over tiles: passes of sums towards lambda, the output, the
// epilogue. entmax_tiles_shared.cuh has the pipeline.
#pragma once

#include <cfloat>

#include "kernels/device/ptx.cuh"
#include "kernels/mma/tile_mask.cuh"
#include "kernels/sm90/entmax_power.cuh"
#include "kernels/sm90/entmax_tiles_producer.cuh"
#include "kernels/sm90/write_rows.cuh"

namespace keyhole::sm90 {

// What consumers need of a call, beside its tensors.
struct TilesRule {
  float r;          // 1 / (alpha - 1)
  float bend;       // alpha - 1
  float unit;       // (alpha - 1) scale: x = unit * product + base
  float widen;      // x of the output pass is multiplied by this, and its weights by kWidened:
                    // otherwise small weights would lose digits in fp16
  float wide_unit;  // widen * unit
  static constexpr float kWidened = 16384;

  static TilesRule of(const device::EntmaxParams& p) {
    const double widen = std::pow(double(kWidened), p.power.bend);
    const double unit = p.power.bend * double(p.sizes.scale);
    return {float(p.power.power), float(p.power.bend), float(unit), float(widen),
            float(widen * unit)};
  }
};

template <class T, class C, PowerKind kKind>
class TilesConsumer {
 public:
  __device__ TilesConsumer(const TilesParams& p, const TilesRule& rule, TilesShared<C>& shared)
      : p_(p),
        rule_(rule),
        shared_(shared),
        queries_(smem_address(shared.q) + uint32_t(warp() / 4 * 64 * 128)) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      shared_.waits.await(shared_.q_full, shared_.num_items[warp()] % 2);
      if (num_tiles() == 0) return;
      follow();
      __syncwarp();
      if (lane() == 0) ++shared_.num_items[warp()];
      __syncwarp();
      arrive_as_warp(shared_.q_empty);
    }
  }

 private:
  static constexpr int kPartKeys = 64;
  using Products = float[kPartKeys / 2];
  using Out = float[C::head_dim / 2];
  using Weights = uint32_t[kPartKeys / 16][4];
  using Queries = typename TilesShared<C>::Queries;
  using Keys = typename TilesShared<C>::Keys;
  static constexpr int kMostPasses = 8;  // of sums
  // A row whose weights have another sum is not solved.
  static constexpr float kTolerance = 5e-4f;

  // Among the consumers. Computed at each use: the mainloop has no register for it.
  static __device__ __forceinline__ int thread() {
    return int(device::thread_index()) - 32 * kScanProducerWarps;
  }
  static __device__ __forceinline__ int lane() { return int(device::thread_index()) % 32; }
  static __device__ __forceinline__ int warp() { return thread() / 32; }
  // The first of this lane's two rows in the query tile; the other one is 8 further.
  static __device__ __forceinline__ int row() { return warp() * 16 + lane() / 4; }

  // Of the item. What is seldom needed is read again, or computed again: the mainloop has few
  // registers to spare.
  __device__ __forceinline__ int32_t num_tiles() const {
    return warp_uniform(shared_.item.work.num_tiles);
  }
  // (alpha - 1) times the score of the sink.
  __device__ __forceinline__ float sink() const {
    return rule_.bend * p_.entmax.sink[shared_.item.work.head * p_.entmax.sink_stride];
  }
  __device__ __forceinline__ int64_t query(int h) const {
    return shared_.item.first_query + int64_t{p_.view.stride} * (row() + 8 * h);
  }
  __device__ __forceinline__ int64_t row_index(int h) const {
    return shared_.item.work.head_index * p_.entmax.sizes.q_len + query(h);
  }

  __device__ __forceinline__ void follow() {
    begin();
    if (shared_.item.needs_start) find_start();
    bool is_output = false;
    if (kIsRough) is_output = find_sums<true>(false);
    for (int pass = 1; !is_output; ++pass) is_output = find_sums<false>(pass == kMostPasses);
    Out out;
    find_output(out);
    store(out);
  }

  // Rows that are not to be processed get a base of -inf: they have no weights. Neither have those
  // whose base is not known yet.
  static constexpr float kUnknown = -FLT_MAX;
  __device__ __forceinline__ void begin() {
    const device::CandidateLists& candidates = p_.entmax.candidates;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      base_[h] = -INFINITY;
      if (row() + 8 * h >= shared_.item.num_rows) continue;
      if (!p_.has_scan) {
        base_[h] = kUnknown;
      } else if (candidates.count[row_index(h)] == device::kAlone) {
        const float bound = candidates.lambda_bound[row_index(h)];
        base_[h] = bound == -INFINITY ? kUnknown : fmaf(-rule_.bend, bound, 1);
      }
    }
  }

  // Key tiles are multiplied in parts of 64 keys: the products of two parts fit the registers. Even
  // parts of a list are part 0 of their tile, odd ones the last.
  static constexpr int kParts = C::tile_k / kPartKeys, kLastPart = kParts - 1;

  // Issues the products of the next part.
  template <int kPart>
  __device__ __forceinline__ void start(Products& products) {
    if constexpr (kPart == 0) shared_.waits.await(shared_.k_full[k_.stage], k_.parity);
    const uint64_t queries = operand(queries_, Queries::bytes);
    const uint64_t keys =
        operand(smem_address(shared_.k[k_.stage]) + uint32_t(kPart * kPartKeys * 128), Keys::bytes);
    begin_products();
    Product<T>::template of_shared<true, false, false>(products, queries, keys);
#pragma unroll
    for (int d = 1; d < C::head_dim / 16; ++d) {
      Product<T>::template of_shared<false, false, false>(
          products, further(queries, d / 4 * Queries::bytes + d % 4 * 32),
          further(keys, d / 4 * Keys::bytes + d % 4 * 32));
    }
    commit_products();
    if constexpr (kPart == kLastPart) k_.next();
  }
  // Waits for the products of the oldest part, and for all others issued so far. Returns the number
  // of their bitmap.
  template <int kPart>
  __device__ __forceinline__ int32_t finish(Products& products) {
    await_products<0>();
    is_ready(products);
    const int32_t bitmap = warp_uniform(shared_.bitmap[oldest_]);
    if constexpr (kPart == kLastPart) {
      arrive_as_warp(shared_.k_empty[oldest_]);
      oldest_ = oldest_ + 1 == C::stages ? 0 : oldest_ + 1;
    }
    return bitmap;
  }
  template <int kPart>
  __device__ __forceinline__ void apply_mask(Products& products, int32_t bitmap) const {
    if (bitmap == kFull) return;
    mma::TileMask<kScanRows, C::tile_k> mask;
    mask.load(p_.view, bitmap, thread());
    mask.template apply<kPart * kPartKeys / 2>(products);
  }

  // Calls add(products) for all parts of the next key tiles, one part while the next one is
  // multiplied.
  template <class Add>
  __device__ __forceinline__ void for_each_part(int tiles, const Add& add) {
    Products even, odd;
    start<0>(even);
    int left = tiles * kParts - 1;
    for (; left > 1; left -= 2) {
      add_beside<0, kLastPart>(even, odd, add);
      add_beside<kLastPart, 0>(odd, even, add);
    }
    if (left == 1) {
      add_beside<0, kLastPart>(even, odd, add);
      apply_mask<kLastPart>(odd, finish<kLastPart>(odd));
      add(odd);
    } else {
      apply_mask<0>(even, finish<0>(even));
      add(even);
    }
  }
  // ptxas would delay the sums, and spread the next products among them. So a branch is before
  // them, that of the mask, and `add` ends with one.
  template <int kPart, int kNextPart, class Add>
  __device__ __forceinline__ void add_beside(Products& products, Products& next, const Add& add) {
    const int32_t bitmap = finish<kPart>(products);
    start<kNextPart>(next);
    apply_mask<kPart>(products, bitmap);
    add(products);
  }

  __device__ __forceinline__ void find_start() {
    const int tiles = num_start_tiles(num_tiles());
    const float share = float(num_tiles()) / float(tiles);
    for (int pass = num_start_passes(num_tiles()); pass > 0; --pass) {
      PowerSums sums[2];
      for_each_part(tiles, [&](const Products& products) {
        if (__any_sync(~0u, base_[0] == kUnknown || base_[1] == kUnknown)) take_largest(products);
        add_roughly(sums, products);
      });
      step(sums, share);
    }
#pragma unroll
    for (float& base : base_) base = base == kUnknown ? -INFINITY : base;
  }
  // The largest score of a row, among those of the first part in which it has some, is a bound of
  // its lambda.
  __device__ __forceinline__ void take_largest(const Products& products) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = -INFINITY;
#pragma unroll
      for (int j = 2 * h; j < kPartKeys / 2; j += 4) {
        top = fmaxf(top, fmaxf(products[j], products[j + 1]));
      }
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      if (base_[h] == kUnknown && top > -INFINITY) base_[h] = fmaf(-rule_.unit, top, 1);
    }
  }

  // One pass of sums and a step. Returns whether the output is next.
  // kRoughly: the output is not next.
  template <bool kRoughly>
  __device__ __forceinline__ bool find_sums(bool is_last) {
    PowerSums sums[2];
    for_each_part(num_tiles(), [&](const Products& products) {
      kRoughly ? add_roughly(sums, products) : add(sums, products);
    });
    const bool is_far = step(sums, 1);
    const bool is_output = !kRoughly && (!is_any_consumer(is_far) || is_last);
    if (thread() == 0) {
      shared_.is_output = is_output;
      arrive(shared_.decided);
      if (is_output) arrive(shared_.output_begins);
    }
    return is_output;
  }
  __device__ __forceinline__ void add(PowerSums (&sums)[2], const Products& products) const {
#pragma unroll
    for (int j = 0; j < kPartKeys / 2; ++j) {
      const int h = j / 2 % 2;
      sums[h].template add<kKind>(at_least_0(fmaf(products[j], rule_.unit, base_[h])), rule_.r);
    }
    // Never: see add_beside.
    if (__any_sync(~0u, fminf(sums[0].weight, sums[1].weight) < 0)) sums[0] = {};
  }
  // Where there is such a form, in fp16: the first steps need not be exact.
  static constexpr bool kIsRough = kKind == PowerKind::four;
  __device__ __forceinline__ void add_roughly(PowerSums (&sums)[2],
                                              const Products& products) const {
    if constexpr (!kIsRough) return add(sums, products);
    RoughSums rough[2];
#pragma unroll
    for (int j = 0; j < kPartKeys / 2; j += 2) {
      const int h = j / 2 % 2;
      rough[h].add(fmaf(products[j], rule_.unit, base_[h]),
                   fmaf(products[j + 1], rule_.unit, base_[h]));
    }
    rough[0].add_to(sums[0]);
    rough[1].add_to(sums[1]);
    // Never: see add_beside.
    if (__any_sync(~0u, fminf(sums[0].weight, sums[1].weight) < 0)) sums[0] = {};
  }
  // share: of all keys to those of the sums. Returns whether a row was too far for this step to be
  // its last.
  __device__ __forceinline__ bool step(const PowerSums (&sums)[2], float share) {
    bool is_far = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (base_[h] <= kUnknown) continue;
      PowerSums all = {share * row_sum_of_four(sums[h].weight),
                       share * row_sum_of_four(sums[h].slope),
                       share * row_sum_of_four(sums[h].curve)};
      if (p_.entmax.sink != nullptr) {
        all.template add<kKind>(at_least_0(sink() + base_[h]), rule_.r);
      }
      // Sums that are not finite: rough ones are found again, and otherwise the row stays left
      // alone.
      const float distance = fabsf(all.weight - 1), step = all.template step<kKind>(rule_.r);
      is_far = is_far || (distance > distance_of_last_step<kKind>() && distance < INFINITY);
      if (fabsf(step) < INFINITY) base_[h] -= step;
      if (lane() % 4 == 0) shared_.slope[row() + 8 * h] = all.slope;
    }
    return is_far;
  }
  // Of the four lanes of a row. All lanes of a warp need not call, but all four of a row.
  static __device__ __forceinline__ float row_sum_of_four(float x) {
    const uint32_t four = 0xfu << lane() / 4 * 4;
    x += __shfl_xor_sync(four, x, 1);
    return x + __shfl_xor_sync(four, x, 2);
  }
  static __device__ __forceinline__ bool is_any_consumer(bool is_true) {
    uint32_t any;
    asm volatile(
        "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.cta.red.or.pred q, 1, %2, p;\n"
        "selp.u32 %0, 1, 0, q;\n}"
        : "=r"(any)
        : "r"(uint32_t(is_true)), "n"(32 * kScanWarps)
        : "memory");
    return any != 0;
  }

  __device__ __forceinline__ void find_output(Out& out) {
#pragma unroll
    for (float& x : out) x = 0;
    sum_[0] = sum_[1] = 0;
    base_[0] *= rule_.widen, base_[1] *= rule_.widen;
    for (int left = num_tiles(); left > 0; --left) {
      const bool is_first = left == num_tiles();
      multiply_values<0>(out, is_first);
      if constexpr (kParts == 2) multiply_values<1>(out, is_first);
    }
    await_products<0>();
    is_ready(out);
    release_values();
    if (p_.entmax.sink == nullptr || lane() % 4 != 0) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum_[h] += weight_of<kKind>(at_least_0(fmaf(rule_.widen, sink(), base_[h])), rule_.r);
    }
  }

  __device__ __forceinline__ void release_values() {
    arrive_as_warp(shared_.v_empty[v_.stage]);
    v_.next();
  }
  // The next part of the list: weights, and their product with the values.
  template <int kPart>
  __device__ __forceinline__ void multiply_values(Out& out, bool is_first_tile) {
    Products products;
    start<kPart>(products);
    const int32_t bitmap = finish<kPart>(products);
    is_ready(out);
    apply_mask<kPart>(products, bitmap);
    if (kPart == 0 && !is_first_tile) release_values();  // of the tile before
    Weights weights;
#pragma unroll
    for (int j = 0; j < kPartKeys / 4; ++j) {
      const int h = j % 2;
      float two[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float x = at_least_0(fmaf(products[2 * j + e], rule_.wide_unit, base_[h]));
        two[e] = weight_of<kKind>(x, rule_.r);
        sum_[h] += two[e];
      }
      weights[j / 4][j % 4] = device::pack_two<T>(two[0], two[1]);
    }
    if constexpr (kPart == 0) shared_.waits.await(shared_.v_full[v_.stage], v_.parity);
    const uint64_t values =
        operand(smem_address(shared_.v[v_.stage]) + uint32_t(kPart * kPartKeys * 128), Keys::bytes);
    begin_products();
#pragma unroll
    for (int b = 0; b < kPartKeys / 16; ++b) {
      Product<T>::of_registers(out, weights[b], further(values, b * 16 * 128));
    }
    commit_products();
  }

  __device__ __forceinline__ void store(const Out& out) const {
    const device::EntmaxParams& p = p_.entmax;
    const int32_t batch = shared_.item.work.batch, head = shared_.item.work.head;
    const int c = lane() % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float sum = sum_[h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const float factor = 1 / sum;
      bool is_right = base_[h] != -INFINITY &&
                      fabsf(sum - TilesRule::kWidened) <= kTolerance * TilesRule::kWidened;
      float not_finite = 0;  // NaN when any value is infinite or NaN
#pragma unroll
      for (int j = 0; j < C::head_dim / 8; ++j) {
        not_finite = fmaf(out[4 * j + 2 * h], 0.f, not_finite);
        not_finite = fmaf(out[4 * j + 2 * h + 1], 0.f, not_finite);
      }
      is_right = is_right && not_finite == 0;
      const uint32_t votes = __ballot_sync(~0u, is_right);
      is_right = (votes >> (lane() & ~3) & 0xf) == 0xf;
      const bool is_there = row() + 8 * h < shared_.item.num_rows;
      const int64_t at = query(h);
      T* const to = p.out.row<T>(batch, head, is_there ? at : 0);
#pragma unroll
      for (int j = 0; j < C::head_dim / 8; j += 4) {  // four lanes write 64 bytes of a row
        uint32_t two[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int first = 4 * (j + i) + 2 * h;
          two[i] = device::pack_two<T>(factor * out[first], factor * out[first + 1]);
        }
        const uint4 eight = exchange_blocks(two, c);
        const int col = 8 * (j + c);
        if (is_there && is_right && col < p.sizes.v_head_dim) {
          device::store_vector(to + col, eight);
        }
      }
      if (!is_there || !is_right || c != 0) continue;
      if (p.lse.data != nullptr) {
        const float last_step = (sum / TilesRule::kWidened - 1) / shared_.slope[row() + 8 * h];
        *p.lse.row<float>(batch, head, at) = fmaf(rule_.r, 1 - base_[h] / rule_.widen, last_step);
      }
      if (p.support.data != nullptr) *p.support.row<int32_t>(batch, head, at) = kLongSupport;
      p.candidates.count[row_index(h)] = 0;
    }
  }

  const TilesParams& p_;
  const TilesRule& rule_;
  TilesShared<C>& shared_;
  const uint32_t queries_;  // of the warpgroup, in shared memory
  PipelineState<C::stages> k_, v_;
  int oldest_ = 0;  // the stage of the key tile whose products are awaited next
  float base_[2];   // x = unit * product + base: 1 - (alpha - 1) lambda; widened in the output pass
  float sum_[2];    // of the weights, widened; of this lane's columns
};

}  // namespace keyhole::sm90
