// src/kernels/mma/entmax_solve.cu
// A warp processes several rows at once, kLanes lanes each. The list of a row is short: each lane
// holds a few of its candidates in registers, so a step towards lambda is a few multiplications and
// two sums over the lanes. What has weight is put in order of its keys in shared memory. Then the
// warp gathers the values of one row after another.
//
// fp32: the products in the list are those of rounded rows. They tell which candidates can have
// weight, given a margin. The warp gathers the keys of those, and their own products replace what
// was in the list.
#include <climits>
#include <type_traits>

#include "base/int_math.h"
#include "base/ordered_bits.h"
#include "kernels/device/convert.cuh"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/launch.h"
#include "kernels/device/once_per_gpu.h"
#include "kernels/device/pair_gradient.cuh"
#include "kernels/mma/entmax_solve.h"
#include "kernels/mma/tensor_gather.cuh"

namespace keyhole::mma {
namespace {

using device::Candidate;
using device::EntmaxParams;
using device::kAlone;
using device::kCandidatesPerRow;

constexpr int kWarps = 4;                         // of a CTA
constexpr int kLanes = 16, kRows = 32 / kLanes;   // of a row; rows of a warp
constexpr int kOwn = kCandidatesPerRow / kLanes;  // candidates of a lane
constexpr int kShort = 32;                        // keys of weight that a sorting network takes
constexpr int kWords = kShort / kLanes;           // of a lane, in such a network
constexpr int kKeyBits = 27;                      // of a key there
static_assert(kShort <= 1 << (32 - kKeyBits) && 2 * kShort <= kCandidatesPerRow);

// Whether candidates have products of rounded rows. G: how rows are gathered.
template <class G>
inline constexpr bool kIsRounded = std::is_same_v<typename G::Storage, float>;
struct NoMargins {};
template <class G>
using RowMargins = std::conditional_t<kIsRounded<G>, const float*, NoMargins>;  // [rows]
using Float32Gather = device::RowGather<float, 2, true>;
constexpr int kChunk = Float32Gather::kColumns;  // of its columns

struct Weighted {
  int32_t key;
  float weight;
};
struct RowRoom {  // shared memory of a row
  Weighted sorted[kCandidatesPerRow];
  alignas(16) int32_t keys[kCandidatesPerRow + 4];
};

// --- the lanes of a row ---

__device__ __forceinline__ int lane() { return int(threadIdx.x) % kLanes; }
__device__ __forceinline__ uint32_t row_ballot(bool is_true) {
  const uint32_t all = __ballot_sync(~0u, is_true);
  if constexpr (kLanes == 32) return all;
  return all >> (threadIdx.x % 32 / kLanes * kLanes) & ((1u << (kLanes % 32)) - 1);
}
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// The largest number of the warp's rows.
__device__ __forceinline__ int most_of_rows(int of_row) {
#pragma unroll
  for (int step = kLanes; step < 32; step *= 2) {
    of_row = max(of_row, __shfl_xor_sync(~0u, of_row, step));
  }
  return of_row;
}

// A pointer that another lane has.
template <class T>
__device__ __forceinline__ T* pointer_of_lane(T* mine, int lane) {
  return reinterpret_cast<T*>(__shfl_sync(~0u, reinterpret_cast<unsigned long long>(mine), lane));
}

// kPlain: alpha = 1.5, known to the compiler. The other form takes any alpha.
template <bool kPlain>
__device__ __forceinline__ EntmaxPower power_of(const EntmaxParams& p) {
  return kPlain ? EntmaxPower{.bend = 0.5, .power = 2, .whole = 2} : p.power;
}

// The candidates of a row, as a lane holds them. Every function is called by the whole warp.
class Candidates {
 public:
  __device__ Candidates(const EntmaxParams& p, int64_t row, int count)
      : count_(count), most_(most_of_rows(count)) {
    const auto rule = SoftmaxRule<device::BaseEMath<float>>::of(rule_of(p.sizes));
    const Candidate* const from = p.candidates.entries + row * p.candidates.capacity;
    bool is_bad = false;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      score_[i] = -INFINITY;
      key_[i] = 0;
      const int place = kLanes * i + lane();
      if (place < count) {
        const Candidate candidate = from[place];
        key_[i] = candidate.key;
        score_[i] = rule.score(rule.bend(candidate.product));
        is_bad = is_bad || !device::is_finite(candidate.product);
      }
    }
    is_all_finite_ = row_ballot(is_bad) == 0;
  }
  __device__ bool is_all_finite() const { return is_all_finite_; }
  __device__ void drop_all() { count_ = 0; }

  // For products of rounded rows, all of them finite, by which a score may be off by `margin`.
  // Leaves those that may have weight: their keys are in room.keys. bound: of lambda of the rounded
  // scores. Returns a lower bound of lambda of the scores themselves.
  __device__ float drop_by_margin(const EntmaxParams& p, const EntmaxPower& power, float bound,
                                  float margin, RowRoom& room) {
    float top = -INFINITY, least = -INFINITY;
    for_each_slot([&](int i) { top = fmaxf(top, score_[i]); });
    top = row_max(top);
    is_all_finite_ = count_ == 0 || device::is_finite(top);
    if (!power.is_softmax()) {
      bound = raised_bound(power, top, bound);
      least = lowest_score(power, bound) - 2 * margin;
    }
    if (p.top_k > 0 && most_ > p.top_k) {
      const float limit = limit_of_top(int(p.top_k));
      if (limit < INFINITY) least = fmaxf(least, limit - 2 * margin);
    }
    int kept = 0;
    for_each_slot([&](int i) {
      const bool is_kept = kLanes * i + lane() < count_ && score_[i] >= least;
      const uint32_t all = row_ballot(is_kept);
      if (is_kept) room.keys[kept + __popc(all & ((1u << lane()) - 1))] = key_[i];
      kept += __popc(all);
    });
    count_ = kept;
    most_ = most_of_rows(kept);
    return bound - margin;
  }
  // Replaces the products of rounded rows by those of the row `q` with its keys. rooms: of the rows
  // of this warp, with what drop_by_margin has left.
  template <class G>
  __device__ void multiply(const G& gather, const EntmaxParams& p, const float* q,
                           const float* keys, RowRoom* rooms) {
    __syncwarp();
#pragma unroll 1
    for (int r = 0; r < kRows; ++r) {
      const int from = r * kLanes, count = __shfl_sync(~0u, count_, from);
      const float* const his_q = pointer_of_lane(q, from);
      const device::RowsOfHead<float> rows = {pointer_of_lane(keys, from), p.k.row_stride};
#pragma unroll 1
      for (int first = 0; first < count; first += device::kGatherPlaces) {
        const int place = first + G::place_of_lane();
        const int32_t key = place < count ? rooms[r].keys[place] : -1;
        const int32_t loads = G::loads_for(place < count);
        gather.start(0, rows, p.sizes.head_dim, key, loads);
        gather.await();
        const float product = gather.dot(0, his_q, rows, p.sizes.head_dim, key, loads);
        if (place < count) rooms[r].sorted[place] = {key, product};
      }
    }
    __syncwarp();
    const auto rule = SoftmaxRule<device::BaseEMath<float>>::of(rule_of(p.sizes));
    const Weighted* const own = rooms[threadIdx.x % 32 / kLanes].sorted;
    bool is_bad = false;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      score_[i] = -INFINITY;
      const int place = kLanes * i + lane();
      if (place >= count_) continue;
      key_[i] = own[place].key;
      score_[i] = rule.score(rule.bend(own[place].weight));
      is_bad = is_bad || !device::is_finite(score_[i]);
    }
    const uint32_t bad = row_ballot(is_bad);
    is_all_finite_ = is_all_finite_ && bad == 0;
    __syncwarp();  // own has been read
  }

  // Leaves the top_k first.
  __device__ void select(int64_t top_k, RowRoom& room) {
    if (most_ <= top_k) return;
    const float limit = limit_of_top(int(top_k));
    if (__any_sync(~0u, limit == INFINITY)) return select_among_equals(top_k, room);
    for_each_slot([&](int i) {
      if (score_[i] <= limit) score_[i] = -INFINITY;
    });
  }

  // sink: one more score; -inf: none. bound: a lower bound of lambda, to begin with. The result is
  // -inf if there is no score at all.
  __device__ Lambda<float> solve(const EntmaxPower& power, float sink, float bound) const {
    Lambda<float> lambda;
    lambda.top = sink;
    for_each_slot([&](int i) { lambda.top = fmaxf(lambda.top, score_[i]); });
    lambda.top = row_max(lambda.top);
    const auto rule = EntmaxRule<EntmaxMath<float>>::of(power);
    // Where scores are so large that rounding moves the bound, it is not used.
    constexpr float kLarge = 4096;
    const float above = fabsf(lambda.top) < kLarge ? fmaxf(bound - lambda.top, 0) : 0;
    LambdaSearch<float> search = {above, lambda.top == -INFINITY};
    int count_before = 0;
    for (int round = 0; round < kMostEntmaxRounds && !__all_sync(~0u, search.is_done); ++round) {
      EntmaxSums<float> sums;
      int count = 0;
      const auto add = [&](float score) {
        const auto terms = rule.terms((score - lambda.top) - search.above);
        sums.weight += terms.weight;
        sums.slope += terms.slope;
        count += __popc(row_ballot(terms.slope > 0));
      };
      for_each_slot([&](int i) { add(score_[i]); });
      if (__any_sync(~0u, sink != -INFINITY)) add(lane() == 0 ? sink : -INFINITY);
      search.step(power, {row_sum(sums.weight), row_sum(sums.slope), float(count)}, count_ + 1);
      // For alpha = 1.5 the quadratic of these keys has now been solved twice.
      if (power.whole == 2 && count == count_before) search.is_done = true;
      count_before = count;
    }
    lambda.above = search.above;
    return lambda;
  }

  // Puts what has weight into room.sorted, in the order of the keys. Returns how many there are.
  // has_short_keys: they have kKeyBits.
  __device__ int sort_support(const EntmaxPower& power, const Lambda<float>& lambda,
                              bool has_short_keys, RowRoom& room) const {
    const auto rule = EntmaxRule<EntmaxMath<float>>::of(power);
    float weight[kOwn] = {};
    int place[kOwn], count = 0;  // place: among those with weight
    for_each_slot([&](int i) {
      // -inf has no finite distance from a lambda of -inf.
      if (score_[i] != -INFINITY) {
        weight[i] = rule.terms((score_[i] - lambda.top) - lambda.above).weight;
      }
      const uint32_t kept = row_ballot(weight[i] > 0);
      place[i] = count + __popc(kept & ((1u << lane()) - 1));
      count += __popc(kept);
    });
    if (most_of_rows(count) <= kShort && has_short_keys) {
      sort_short(weight, place, count, room);
    } else {
      sort_long(weight, place, count, room);
    }
    __syncwarp();
    return count;
  }

 private:
  // A lower bound of lambda of these scores, the largest of which is `top`, from a given one.
  __device__ float raised_bound(const EntmaxPower& power, float top, float bound) const {
    constexpr int kRounds = 3;
    constexpr float kNotQuite = 0.99999f;  // sums are rounded
    const auto rule = EntmaxRule<EntmaxMath<float>>::of(power);
    float above = fmaxf(bound - top, 0);
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      EntmaxSums<float> sums;
      for_each_slot([&](int i) {
        const auto terms = rule.terms((score_[i] - top) - above);
        sums.weight += terms.weight;
        sums.slope += terms.slope;
      });
      sums = {row_sum(sums.weight), row_sum(sums.slope)};
      if (sums.weight > 1) above += kNotQuite * lambda_step_below(power, sums);
    }
    return top + above;
  }

  // Calls visit(i) for the slots that a row of the warp uses.
  template <class Visit>
  __device__ __forceinline__ void for_each_slot(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (kLanes * i < most_) visit(i);
    }
  }

  // Up to kShort keys, by a sorting network: lane l has the words l, l + kLanes and so on. A word
  // is a key and where its weight is.
  __device__ void sort_short(const float (&weight)[kOwn], const int (&place)[kOwn], int count,
                             RowRoom& room) const {
    Weighted* const unsorted = room.sorted + kShort;
    for_each_slot([&](int i) {
      if (weight[i] > 0) unsorted[place[i]] = {key_[i], weight[i]};
    });
    __syncwarp();
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int at = lane() + i * kLanes;
      words[i] = at < count ? uint32_t(unsorted[at].key) << (32 - kKeyBits) | uint32_t(at) : ~0u;
    }
    // Ascending runs of 2, 4, ... words. Two runs are merged: each word of one meets the opposite
    // word of the other, then words at half the distance, and so on.
#pragma unroll
    for (int run = 2; run <= kShort; run *= 2) {
      order_opposite(words, run);
#pragma unroll
      for (int distance = run / 4; distance > 0; distance /= 2) order_distant(words, distance);
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int at = lane() + i * kLanes;
      const uint32_t from = words[i] & ((1u << (32 - kKeyBits)) - 1);
      if (at < count) room.sorted[at] = unsorted[from];
    }
  }
  static __device__ __forceinline__ void order_opposite(uint32_t (&words)[kWords], int run) {
    if (run <= kLanes) return order_lanes(words, run - 1, run / 2);
    const int all = run / kLanes;
    uint32_t other[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      other[i] = __shfl_xor_sync(~0u, words[i / all * all + all - 1 - i % all], kLanes - 1);
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = i % all < all / 2 ? min(words[i], other[i]) : max(words[i], other[i]);
    }
  }
  static __device__ __forceinline__ void order_distant(uint32_t (&words)[kWords], int distance) {
    if (distance < kLanes) return order_lanes(words, distance, distance);
    const int step = distance / kLanes;
#pragma unroll
    for (int i = 0; i + step < kWords; ++i) {
      if (i % (2 * step) >= step) continue;
      const uint32_t low = min(words[i], words[i + step]);
      words[i + step] = max(words[i], words[i + step]);
      words[i] = low;
    }
  }
  // Of two lanes that differ in `bits`, the one without `half` gets the smaller word.
  static __device__ __forceinline__ void order_lanes(uint32_t (&words)[kWords], int bits,
                                                     int half) {
    const bool is_upper = (lane() & half) != 0;
#pragma unroll
    for (uint32_t& word : words) {
      const uint32_t other = __shfl_xor_sync(~0u, word, bits);
      word = (other < word) != is_upper ? other : word;
    }
  }
  // By rank.
  __device__ void sort_long(const float (&weight)[kOwn], const int (&place)[kOwn], int count,
                            RowRoom& room) const {
    for_each_slot([&](int i) {
      if (weight[i] > 0) room.keys[place[i]] = key_[i];
    });
    if (lane() < 4) room.keys[count + lane()] = INT_MAX;  // up to a whole int4
    __syncwarp();
    int rank[kOwn] = {};
    for (int first = 0; first < count; first += 4) {
      const int4 keys = *reinterpret_cast<const int4*>(room.keys + first);
      for_each_slot([&](int i) {
        rank[i] += (keys.x < key_[i] ? 1 : 0) + (keys.y < key_[i] ? 1 : 0) +
                   (keys.z < key_[i] ? 1 : 0) + (keys.w < key_[i] ? 1 : 0);
      });
    }
    for_each_slot([&](int i) {
      if (weight[i] > 0) room.sorted[rank[i]] = {key_[i], weight[i]};
    });
  }

  // A score that exactly top_k scores are above; +inf if there is none, because of equal ones.
  __device__ float limit_of_top(int top_k) const {
    float top = -INFINITY;
    for_each_slot([&](int i) { top = fmaxf(top, score_[i]); });
    uint32_t low = ordered_bits(-INFINITY), high = ordered_bits(row_max(top));
    float limit = count_ <= top_k ? -INFINITY : INFINITY;
    for (int round = 0; round < 32 && __any_sync(~0u, limit == INFINITY); ++round) {
      const uint32_t middle = low + (high - low) / 2;
      const float at = number_of_bits<float>(middle);
      int above = 0;
      for_each_slot([&](int i) { above += __popc(row_ballot(score_[i] > at)); });
      if (limit == INFINITY && above == top_k) limit = at;
      (above >= top_k ? low : high) = middle;
    }
    return limit;
  }
  // By rank: (score, then the lower key).
  __device__ void select_among_equals(int64_t top_k, RowRoom& room) {
    for_each_slot([&](int i) {
      const int place = kLanes * i + lane();
      if (place < count_) room.sorted[place] = {key_[i], score_[i]};
    });
    __syncwarp();
    int rank[kOwn] = {};
    for (int place = 0; place < count_; ++place) {
      const Weighted other = room.sorted[place];
      for_each_slot([&](int i) {
        rank[i] += ranks_before(other.weight, other.key, score_[i], key_[i]) ? 1 : 0;
      });
    }
    __syncwarp();
    for_each_slot([&](int i) {
      if (rank[i] >= top_k) score_[i] = -INFINITY;
    });
  }

  int count_, most_;  // most_: of the rows of the warp
  bool is_all_finite_;
  float score_[kOwn];
  int32_t key_[kOwn];
};

__device__ void store_support(int32_t* to, const Weighted* sorted, int count) {
#pragma unroll
  for (int first = 0; first < kSupportKeys; first += kLanes) {
    const int place = first + lane();
    int32_t key = place < count ? sorted[place].key : -1;
    if (count > kSupportKeys && place == 0) key = kLongSupport;
    to[place] = key;
  }
}

// out = the sum of weight * value over the list. The whole warp calls, for one row.
template <class G>
__device__ __forceinline__ void store_output(const G& gather,
                                             const device::RowsOfHead<typename G::Storage>& values,
                                             int32_t cols, const Weighted* sorted, int count,
                                             typename G::Storage* out) {
  // On tensor cores all columns are one chunk.
  for (int32_t first_col = 0; first_col < (kIsRounded<G> ? cols : 1); first_col += kChunk) {
    typename G::Columns sum = {};
    for (int first = 0; first < count; first += device::kGatherPlaces) {
      const int place = first + G::place_of_lane();
      const Weighted pair = place < count ? sorted[place] : Weighted{-1, 0};
      const int32_t loads = G::loads_for(place < count);
      gather.start(0, values, cols, pair.key, loads);
      gather.await();
      gather.add(sum, 0, values, first_col, cols, pair.key, pair.weight, loads);
    }
    typename G::OwnColumns own = {};
    G::share(sum, own);
    G::store(out, first_col, cols, own);
  }
}

// By the registers that a thread needs.
template <class G>
constexpr int ctas_per_processor() {
  if constexpr (kIsRounded<G>) {
    return 4;
  } else {
    return G::kCols == 64 ? 8 : 4;
  }
}

template <class G, bool kPlain>
__global__ void __launch_bounds__(32 * kWarps, ctas_per_processor<G>())
    solve_candidates(const __grid_constant__ EntmaxParams p,
                     const __grid_constant__ RowMargins<G> margins) {
  __shared__ RowRoom rooms[kWarps * kRows];
  extern __shared__ __align__(128) unsigned char gather_rooms[];
  const G gather(gather_rooms + threadIdx.x / 32 * G::kRoomBytes);
  const uint32_t place = threadIdx.x / kLanes, row = blockIdx.x * (kWarps * kRows) + place;
  const uint32_t q_len = uint32_t(p.sizes.q_len);
  int count = kAlone;
  if (row < uint32_t(p.sizes.num_heads()) * q_len) count = p.candidates.count[row];
  bool is_there = count >= 0;
  if (__all_sync(~0u, !is_there)) return;
  const uint32_t head_index = is_there ? row / q_len : 0;
  const int64_t query = is_there ? row - head_index * q_len : 0;
  const int32_t batch = int32_t(head_index) / p.sizes.heads;
  const int32_t head = int32_t(head_index) - batch * p.sizes.heads;

  Candidates candidates(p, row, max(count, 0));
  const float sink = p.sink != nullptr ? p.sink[head * p.sink_stride] : -INFINITY;
  if (is_there && (!candidates.is_all_finite() || !(sink < INFINITY))) {
    if (lane() == 0) p.candidates.count[row] = kAlone;
    is_there = false;
  }
  RowRoom& room = rooms[place];
  float raised = -INFINITY;
  if constexpr (kIsRounded<G>) {
    if (!is_there) candidates.drop_all();
    raised = candidates.drop_by_margin(p, power_of<kPlain>(p),
                                       is_there ? p.candidates.lambda_bound[row] : -INFINITY,
                                       is_there ? p.sizes.scale * margins[row] : 0, room);
    candidates.multiply(gather, p, p.q.row<const float>(batch, head, query),
                        p.k.row<const float>(batch, p.sizes.kv_head_of(head), 0),
                        rooms + threadIdx.x / 32 * kRows);
    if (is_there && !candidates.is_all_finite()) {
      if (lane() == 0) p.candidates.count[row] = kAlone;
      is_there = false;
    }
  }
  if (p.top_k > 0) candidates.select(p.top_k, room);
  const EntmaxPower power = power_of<kPlain>(p);
  // Of all keys, so not of the top_k.
  const auto bound_of_all = [&] {
    if constexpr (kIsRounded<G>) {
      return raised;
    } else {
      return p.candidates.lambda_bound[row];
    }
  };
  const float bound = p.top_k > 0 || !is_there ? -INFINITY : bound_of_all();
  const Lambda<float> lambda = candidates.solve(power, sink, bound);
  int num_kept = candidates.sort_support(power, lambda, p.sizes.k_len < 1 << kKeyBits, room);
  if (is_there && lane() == 0 && p.lse.data != nullptr) {
    *p.lse.row<float>(batch, head, query) = lambda.value();
  }
  if (is_there && p.support.data != nullptr) {
    store_support(p.support.row<int32_t>(batch, head, query), room.sorted, num_kept);
  }
  if (!is_there) num_kept = -1;
  using T = typename G::Storage;
  const T* const values = p.v.row<const T>(batch, p.sizes.kv_head_of(head), 0);
  T* const out = p.out.row<T>(batch, head, query);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int from = r * kLanes;
    const int count_of_row = __shfl_sync(~0u, num_kept, from);
    if (count_of_row < 0) continue;
    store_output(gather, {pointer_of_lane(values, from), p.v.row_stride}, p.sizes.v_head_dim,
                 rooms[threadIdx.x / 32 * kRows + r].sorted, count_of_row,
                 pointer_of_lane(out, from));
  }
}

template <class G, bool kPlain>
void launch_solve(const EntmaxParams& params, const RowMargins<G>& margins, unsigned ctas,
                  cudaStream_t stream) {
  constexpr int kBytes = kWarps * G::kRoomBytes;
  static device::OncePerGpu reserve;
  device::reserve_shared_memory(reserve, solve_candidates<G, kPlain>, kBytes,
                                "entmax on lists of candidates");
  device::launch("entmax on lists of candidates", solve_candidates<G, kPlain>,
                 {ctas, 32 * kWarps, size_t{kBytes}}, stream, params, margins);
}
template <class G>
void launch_solve(const EntmaxParams& params, const RowMargins<G>& margins, cudaStream_t stream) {
  const int64_t rows =
      checked_mul(params.sizes.num_heads(), params.sizes.q_len, "attention: rows of the call");
  if (rows == 0) return;
  narrow(rows, "attention: rows of the call");
  const auto ctas = unsigned(ceil_div(rows, int64_t{kWarps} * kRows));
  params.power.whole == 2 ? launch_solve<G, true>(params, margins, ctas, stream)
                          : launch_solve<G, false>(params, margins, ctas, stream);
}

}  // namespace

void launch_solve_candidates(const EntmaxParams& params, const device::RoundedRows& rounded,
                             DType dtype, cudaStream_t stream) {
  KEYHOLE_ASSERT(params.candidates.capacity <= kCandidatesPerRow, "entmax: lists of ",
                 params.candidates.capacity, " candidates");
  KEYHOLE_ASSERT(params.sizes.v_head_dim <= 128, "entmax: v with head_dim ",
                 params.sizes.v_head_dim);
  if (dtype == DType::f32) {
    return launch_solve<Float32Gather>(params, rounded.margin, stream);
  }
  KEYHOLE_CHECK(spans_few_units(params.v, 1, params.sizes.k_len),
                "attention: the values of one head span more than 32 GiB of memory, which entmax "
                "does not take; make v contiguous");
  with_narrow_gather<1>(dtype, params.sizes.v_head_dim,
                        [&](auto g) { launch_solve<decltype(g)>(params, {}, stream); });
}

}  // namespace keyhole::mma
