// src/kernels/device/entmax_solve.cu
// A warp processes a row. Its list is short: each lane holds up to three candidates in registers,
// so a step towards lambda is a few multiplications and two sums over the warp. What has weight is
// put in order of its keys in shared memory. Then eight lanes read a value together, and four
// values at a time.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/convert.cuh"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/entmax_solve.h"
#include "kernels/device/pair_gradient.cuh"

namespace keyhole::device {
namespace {

constexpr int kWarps = 4;                      // of a CTA, a row each
constexpr int kOwn = kCandidatesPerRow / 32;   // candidates of a lane
constexpr int kTeam = 8, kTeams = 32 / kTeam;  // lanes that read a value together
constexpr int kAtOnce = 4;                     // values of a team in flight

struct Weighted {
  int32_t key;
  float weight;
};

__device__ __forceinline__ int lane() { return int(threadIdx.x) % 32; }
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// kPlain: alpha = 1.5, known to the compiler. The other form takes any alpha.
template <bool kPlain>
__device__ __forceinline__ EntmaxPower power_of(const EntmaxParams& p) {
  return kPlain ? EntmaxPower{.bend = 0.5, .power = 2, .whole = 2} : p.power;
}

// The candidates of a row, as a lane holds them. Every function is called by the whole warp.
class Candidates {
 public:
  __device__ Candidates(const EntmaxParams& p, int64_t row, int count) : count_(count) {
    const auto rule = SoftmaxRule<BaseEMath<float>>::of(rule_of(p.sizes));
    const Candidate* const from = p.candidates.entries + row * p.candidates.capacity;
    bool is_bad = false;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      score_[i] = -INFINITY;
      key_[i] = 0;
      const int place = 32 * i + lane();
      if (place < count) {
        const Candidate candidate = from[place];
        key_[i] = candidate.key;
        score_[i] = rule.score(rule.bend(candidate.product));
        is_bad = is_bad || !is_finite(candidate.product);
      }
    }
    is_all_finite_ = !__any_sync(~0u, is_bad);
  }
  __device__ bool is_all_finite() const { return is_all_finite_; }

  // Leaves the top_k first.
  __device__ void select(int64_t top_k) {
    if (count_ <= top_k) return;
    int rank[kOwn] = {};
    for_each_of_warp([&](int i, int from) {
      const float score = __shfl_sync(~0u, score_of(i), from);
      const int32_t key = __shfl_sync(~0u, key_of(i), from);
#pragma unroll
      for (int own = 0; own < kOwn; ++own) {
        rank[own] += ranks_before(score, key, score_[own], key_[own]) ? 1 : 0;
      }
    });
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (rank[i] >= top_k) score_[i] = -INFINITY;
    }
  }

  // sink: one more score; -inf: none. The result is -inf if there is no score at all.
  __device__ Lambda<float> solve(const EntmaxPower& power, float sink) const {
    Lambda<float> lambda;
    lambda.top = sink;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) lambda.top = fmaxf(lambda.top, score_[i]);
    lambda.top = warp_max(lambda.top);
    if (lambda.top == -INFINITY) return lambda;
    const auto rule = EntmaxRule<EntmaxMath<float>>::of(power);
    lambda.above = solve_lambda<float>(power, count_ + 1, 0, [&](float above) {
      EntmaxSums<float> sums;
      const auto add = [&](float score) {
        const auto terms = rule.terms((score - lambda.top) - above);
        sums.weight += terms.weight;
        sums.slope += terms.slope;
        sums.count += terms.slope > 0 ? 1 : 0;
      };
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if (32 * i < count_) add(score_[i]);
      }
      if (sink != -INFINITY && lane() == 0) add(sink);
      return EntmaxSums<float>{warp_sum(sums.weight), warp_sum(sums.slope), warp_sum(sums.count)};
    });
    return lambda;
  }

  // Puts what has weight into `to`, in the order of the keys. Returns how many there are.
  __device__ int sort_support(const EntmaxPower& power, const Lambda<float>& lambda,
                              Weighted* to) const {
    const auto rule = EntmaxRule<EntmaxMath<float>>::of(power);
    float weight[kOwn];
    uint32_t kept[kOwn];
    int place[kOwn] = {}, count = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      // -inf has no finite distance from a lambda of -inf.
      weight[i] =
          score_[i] == -INFINITY ? 0 : rule.terms((score_[i] - lambda.top) - lambda.above).weight;
      kept[i] = __ballot_sync(~0u, weight[i] > 0);
      count += __popc(kept[i]);
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      for (uint32_t left = kept[i]; left != 0; left &= left - 1) {
        const int32_t key = __shfl_sync(~0u, key_[i], __ffs(int(left)) - 1);
#pragma unroll
        for (int own = 0; own < kOwn; ++own) place[own] += key < key_[own] ? 1 : 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (weight[i] > 0) to[place[i]] = {key_[i], weight[i]};
    }
    return count;
  }

 private:
  // Calls visit(i, from) for each candidate: slot i of lane `from`.
  template <class Visit>
  __device__ void for_each_of_warp(Visit visit) const {
    for (int place = 0; place < count_; ++place) visit(place / 32, place % 32);
  }
  __device__ float score_of(int i) const {
    return i == 0 ? score_[0] : i == 1 ? score_[1] : score_[2];
  }
  __device__ int32_t key_of(int i) const { return i == 0 ? key_[0] : i == 1 ? key_[1] : key_[2]; }
  static_assert(kOwn == 3);

  const int count_;
  bool is_all_finite_;
  float score_[kOwn];
  int32_t key_[kOwn];
};

__device__ void store_support(int32_t* to, const Weighted* sorted, int count) {
  for (int place = lane(); place < kSupportKeys; place += 32) {
    int32_t key = place < count ? sorted[place].key : -1;
    if (count > kSupportKeys && place == 0) key = kLongSupport;
    to[place] = key;
  }
}

// out = the sum of weight * value over the list.
template <class T, int kVectors>
__device__ void store_output(const EntmaxParams& p, int32_t batch, int32_t head, int64_t query,
                             const Weighted* sorted, int count) {
  const int team = lane() / kTeam, member = lane() % kTeam;
  const int32_t cols = p.sizes.v_head_dim;
  const T* const values = p.v.row<T>(batch, p.sizes.kv_head_of(head), 0);
  float sum[kVectors][kVector<T>] = {};
  for (int first = team; first < count; first += kTeams * kAtOnce) {
    uint4 raw[kAtOnce][kVectors];
    float weight[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool is_there = first + kTeams * i < count;
      const Weighted pair = is_there ? sorted[first + kTeams * i] : Weighted{0, 0};
      weight[i] = pair.weight;
#pragma unroll
      for (int x = 0; x < kVectors; ++x) {
        const int32_t col = (member + kTeam * x) * kVector<T>;
        raw[i][x] = is_there ? load_vector(values + pair.key * p.v.row_stride, col, cols) : uint4{};
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
      for (int step = kTeam; step < 32; step *= 2) {
        sum[x][e] += __shfl_xor_sync(~0u, sum[x][e], step);
      }
    }
  }
  if (team != 0) return;
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
  __shared__ Weighted lists[kWarps][kCandidatesPerRow];
  const uint32_t row = blockIdx.x * kWarps + threadIdx.x / 32;
  const uint32_t q_len = uint32_t(p.sizes.q_len);
  if (row >= uint32_t(p.sizes.num_heads()) * q_len) return;
  const int count = p.candidates.count[row];
  if (count < 0) return;
  const uint32_t head_index = row / q_len;
  const int64_t query = row - head_index * q_len;
  const int32_t batch = int32_t(head_index) / p.sizes.heads;
  const int32_t head = int32_t(head_index) - batch * p.sizes.heads;

  Candidates candidates(p, row, count);
  const float sink = p.sink != nullptr ? p.sink[head * p.sink_stride] : -INFINITY;
  if (!candidates.is_all_finite() || !(sink < INFINITY)) {
    if (lane() == 0) p.candidates.count[row] = kAlone;
    return;
  }
  if (p.top_k > 0) candidates.select(p.top_k);
  const EntmaxPower power = power_of<kPlain>(p);
  const Lambda<float> lambda = candidates.solve(power, sink);
  Weighted* const sorted = lists[threadIdx.x / 32];
  const int num_kept = candidates.sort_support(power, lambda, sorted);
  __syncwarp();
  if (lane() == 0 && p.lse.data != nullptr) {
    *p.lse.row<float>(batch, head, query) = lambda.value();
  }
  if (p.support.data != nullptr) {
    store_support(p.support.row<int32_t>(batch, head, query), sorted, num_kept);
  }
  store_output<T, kVectors>(p, batch, head, query, sorted, num_kept);
}

template <class T, int kVectors>
void launch(const EntmaxParams& params, cudaStream_t stream) {
  const int64_t rows =
      checked_mul(params.sizes.num_heads(), params.sizes.q_len, "attention: rows of the call");
  if (rows == 0) return;
  narrow(rows, "attention: rows of the call");
  const auto ctas = unsigned(ceil_div(rows, int64_t{kWarps}));
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
