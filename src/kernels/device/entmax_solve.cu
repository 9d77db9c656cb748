// src/kernels/device/entmax_solve.cu
// A warp processes several rows at once, kLanes lanes each. The list of a row is short: each lane
// holds a few of its candidates in registers, so a step towards lambda is a few multiplications and
// two sums over the lanes. What has weight is put in order of its keys in shared memory. Then eight
// lanes read a value together, and several values at a time.
#include <algorithm>
#include <climits>

#include "base/int_math.h"
#include "base/ordered_bits.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/convert.cuh"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/entmax_solve.h"
#include "kernels/device/pair_gradient.cuh"

namespace keyhole::device {
namespace {

constexpr int kWarps = 4;                          // of a CTA
constexpr int kLanes = 16, kRows = 32 / kLanes;    // of a row; rows of a warp
constexpr int kOwn = kCandidatesPerRow / kLanes;   // candidates of a lane
constexpr int kTeam = 8, kTeams = kLanes / kTeam;  // lanes that read a value together
constexpr int kAtOnce = 4;                         // values of a team in flight

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
    const auto rule = SoftmaxRule<BaseEMath<float>>::of(rule_of(p.sizes));
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
        is_bad = is_bad || !is_finite(candidate.product);
      }
    }
    is_all_finite_ = row_ballot(is_bad) == 0;
  }
  __device__ bool is_all_finite() const { return is_all_finite_; }

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
    }
    lambda.above = search.above;
    return lambda;
  }

  // Puts what has weight into room.sorted, in the order of the keys. Returns how many there are.
  __device__ int sort_support(const EntmaxPower& power, const Lambda<float>& lambda,
                              RowRoom& room) const {
    const auto rule = EntmaxRule<EntmaxMath<float>>::of(power);
    float weight[kOwn] = {};
    int count = 0;
    for_each_slot([&](int i) {
      // -inf has no finite distance from a lambda of -inf.
      if (score_[i] != -INFINITY) {
        weight[i] = rule.terms((score_[i] - lambda.top) - lambda.above).weight;
      }
      const uint32_t kept = row_ballot(weight[i] > 0);
      if (weight[i] > 0) room.keys[count + __popc(kept & ((1u << lane()) - 1))] = key_[i];
      count += __popc(kept);
    });
    if (lane() < 4) room.keys[count + lane()] = INT_MAX;  // up to a whole int4
    __syncwarp();
    int place[kOwn] = {};
    for (int first = 0; first < count; first += 4) {
      const int4 keys = *reinterpret_cast<const int4*>(room.keys + first);
      for_each_slot([&](int i) {
        place[i] += (keys.x < key_[i] ? 1 : 0) + (keys.y < key_[i] ? 1 : 0) +
                    (keys.z < key_[i] ? 1 : 0) + (keys.w < key_[i] ? 1 : 0);
      });
    }
    for_each_slot([&](int i) {
      if (weight[i] > 0) room.sorted[place[i]] = {key_[i], weight[i]};
    });
    __syncwarp();
    return count;
  }

 private:
  // Calls visit(i) for the slots that a row of the warp uses.
  template <class Visit>
  __device__ __forceinline__ void for_each_slot(Visit visit) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (kLanes * i < most_) visit(i);
    }
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

  const int count_, most_;  // most_: of the rows of the warp
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

// out = the sum of weight * value over the list.
template <class T, int kVectors>
__device__ void store_output(const EntmaxParams& p, int32_t batch, int32_t head, int64_t query,
                             const Weighted* sorted, int count, bool is_there) {
  const int team = lane() / kTeam, member = lane() % kTeam;
  const int32_t cols = p.sizes.v_head_dim;
  const T* const values = p.v.row<T>(batch, p.sizes.kv_head_of(head), 0);
  float sum[kVectors][kVector<T>] = {};
  for (int first = team; first < count; first += kTeams * kAtOnce) {
    uint4 raw[kAtOnce][kVectors];
    float weight[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool is_listed = first + kTeams * i < count;
      const Weighted pair = is_listed ? sorted[first + kTeams * i] : Weighted{0, 0};
      weight[i] = pair.weight;
#pragma unroll
      for (int x = 0; x < kVectors; ++x) {
        const int32_t col = (member + kTeam * x) * kVector<T>;
        raw[i][x] =
            is_listed ? load_vector(values + pair.key * p.v.row_stride, col, cols) : uint4{};
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int x = 0; x < kVectors; ++x) {
        float value[kVector<T>];
        convert<T>(raw[i][x], value);
#pragma unroll
        for (int e = 0; e < kVector<T>; ++e) sum[x][e] = fmaf(weight[i], value[e], sum[x][e]);
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int x = 0; x < kVectors; ++x) {
#pragma unroll
    for (int e = 0; e < kVector<T>; ++e) {
#pragma unroll
      for (int step = kTeam; step < kLanes; step *= 2) {
        sum[x][e] += __shfl_xor_sync(~0u, sum[x][e], step);
      }
    }
  }
  if (team != 0 || !is_there) return;
  T* const out = p.out.row<T>(batch, head, query);
#pragma unroll
  for (int x = 0; x < kVectors; ++x) {
#pragma unroll
    for (int e = 0; e < kVector<T>; e += 4) {
      const float four[4] = {sum[x][e], sum[x][e + 1], sum[x][e + 2], sum[x][e + 3]};
      store_four(out, (member + kTeam * x) * kVector<T> + e, cols, four, true);
    }
  }
}

template <class T, int kVectors, bool kPlain>
__global__ void __launch_bounds__(32 * kWarps)
    solve_candidates(const __grid_constant__ EntmaxParams p) {
  __shared__ RowRoom rooms[kWarps * kRows];
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
  if (p.top_k > 0) candidates.select(p.top_k, room);
  const EntmaxPower power = power_of<kPlain>(p);
  // Of all keys, so not of the top_k.
  const float bound = p.top_k > 0 || !is_there ? -INFINITY : p.candidates.lambda_bound[row];
  const Lambda<float> lambda = candidates.solve(power, sink, bound);
  const int num_kept = candidates.sort_support(power, lambda, room);
  if (is_there && lane() == 0 && p.lse.data != nullptr) {
    *p.lse.row<float>(batch, head, query) = lambda.value();
  }
  if (is_there && p.support.data != nullptr) {
    store_support(p.support.row<int32_t>(batch, head, query), room.sorted, num_kept);
  }
  store_output<T, kVectors>(p, batch, head, query, room.sorted, is_there ? num_kept : 0, is_there);
}

template <class T, int kVectors>
void launch(const EntmaxParams& params, cudaStream_t stream) {
  const int64_t rows =
      checked_mul(params.sizes.num_heads(), params.sizes.q_len, "attention: rows of the call");
  if (rows == 0) return;
  narrow(rows, "attention: rows of the call");
  const auto ctas = unsigned(ceil_div(rows, int64_t{kWarps} * kRows));
  if (params.power.whole == 2) {
    solve_candidates<T, kVectors, true><<<ctas, 32 * kWarps, 0, stream>>>(params);
  } else {
    solve_candidates<T, kVectors, false><<<ctas, 32 * kWarps, 0, stream>>>(params);
  }
  check_cuda(cudaGetLastError(), "launching entmax on lists of candidates");
}

}  // namespace

void launch_solve_candidates(const EntmaxParams& params, DType dtype, cudaStream_t stream) {
  KEYHOLE_ASSERT(params.candidates.capacity <= kCandidatesPerRow, "entmax: lists of ",
                 params.candidates.capacity, " candidates");
  with_device_storage(dtype, [&](auto storage) {
    using T = decltype(storage);
    const int32_t vectors = ceil_div(params.sizes.v_head_dim, kTeam * kVector<T>);
    if (vectors <= 1) return launch<T, 1>(params, stream);
    if (vectors <= 2) return launch<T, 2>(params, stream);
    KEYHOLE_ASSERT(vectors <= 4, "entmax: v with head_dim ", params.sizes.v_head_dim);
    launch<T, 4>(params, stream);
  });
}

}  // namespace keyhole::device
