// src/kernels/device/entmax_solve.cu
// Eight lanes, a team, process a row. A list is short: each lane holds up to twelve candidates in
// registers, and a search for lambda is a few multiplications and three shuffles a round. What has
// weight is put in order of its keys in shared memory; then the team reads the values, several rows
// at a time, each with one load per lane and 64 columns.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/convert.cuh"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/entmax_math.cuh"
#include "kernels/device/entmax_solve.h"
#include "kernels/device/pair_gradient.cuh"

namespace keyhole::device {
namespace {

constexpr int kTeam = 8, kTeams = 32 / kTeam;  // of a warp
constexpr int kWarps = 4, kRows = kWarps * kTeams;
constexpr int kOwn = kCandidatesPerRow / kTeam;  // candidates of a lane
constexpr int kAtOnce = 8;                     // values that a team loads before it needs the first

struct Weighted {
  int32_t key;
  float weight;
};
// The lists of one row, in turn: candidates that compete for top_k, keys that have weight, and the
// same in order with their weights.
struct RowLists {
  Candidate scored[kCandidatesPerRow];  // `product` holds the score here
  int32_t keys[kCandidatesPerRow];
  Weighted sorted[kCandidatesPerRow];
};

__device__ __forceinline__ float team_sum(float x) {
#pragma unroll
  for (int step = 1; step < kTeam; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ __forceinline__ float team_max(float x) {
#pragma unroll
  for (int step = 1; step < kTeam; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}
// The lanes of this team among those for which `is_so`, as eight bits.
__device__ __forceinline__ uint32_t team_ballot(bool is_so) {
  return __ballot_sync(~0u, is_so) >> (threadIdx.x % 32 / kTeam * kTeam) & 0xff;
}

// What a lane holds of the row of its team. Every function is called by whole warps.
class TeamRow {
 public:
  __device__ TeamRow(const EntmaxParams& p, RowLists& lists, int64_t row, int32_t count)
      : lists_(lists), member_(int(threadIdx.x) % kTeam), count_(count) {
    const auto rule = EntmaxScoreRule::of(rule_of(p.sizes));
    const Candidate* const from = p.candidates.entries + row * p.candidates.capacity;
    most_ = int(__reduce_max_sync(~0u, unsigned(count)));
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      score_[i] = -INFINITY;
      key_[i] = 0;
      if (i * kTeam >= most_) continue;
      const int place = i * kTeam + member_;
      if (place < count) {
        const Candidate candidate = from[place];
        key_[i] = candidate.key;
        score_[i] = rule.score(rule.bend(candidate.product));
        is_finite_ = is_finite_ && is_finite(candidate.product);
      }
    }
  }

  // Whether every candidate of the row is finite.
  __device__ bool is_all_finite() const { return team_ballot(!is_finite_) == 0; }

  // Leaves the top_k first of the candidates.
  __device__ void select(int64_t top_k) {
    if (!__any_sync(~0u, count_ > top_k)) return;
    for_each([&](int i, int place) {
      if (place < count_) lists_.scored[place] = {score_[i], key_[i]};
    });
    __syncwarp();
    int rank[kOwn] = {};
    for (int other = 0; other < most_; ++other) {
      if (other >= count_) break;
      const Candidate against = lists_.scored[other];
      for_each([&](int i, int) {
        rank[i] += ranks_before(against.product, against.key, score_[i], key_[i]) ? 1 : 0;
      });
    }
    __syncwarp();
    for_each([&](int i, int) {
      if (rank[i] >= top_k) score_[i] = -INFINITY;
    });
  }

  // sink: one more score; -inf: none. The result is -inf if there is no score at all.
  __device__ Lambda<float> solve(const EntmaxPower& power, float sink) {
    float top = sink;
    for_each([&](int i, int) { top = fmaxf(top, score_[i]); });
    Lambda<float> lambda{team_max(top), 0};
    const auto rule = EntmaxWeightRule::of(power);
    bool is_done = lambda.top == -INFINITY;
    for (int round = 0; round < kMostEntmaxRounds; ++round) {
      EntmaxSums<float> sums;
      const auto add = [&](float score) {
        const auto terms = rule.terms((score - lambda.top) - lambda.above);
        sums.weight += terms.weight;
        sums.slope += terms.slope;
        sums.count += terms.slope > 0 ? 1 : 0;
      };
      for_each([&](int i, int) { add(score_[i]); });
      if (sink != -INFINITY && member_ == 0) add(sink);
      sums = {team_sum(sums.weight), team_sum(sums.slope), team_sum(sums.count)};
      is_done = is_done || is_solved(sums.weight, count_);
      const float next = is_done ? lambda.above : lambda.above + lambda_step(power, sums);
      is_done = is_done || next == lambda.above;
      lambda.above = next;
      if (__all_sync(~0u, is_done)) break;
    }
    return lambda;
  }

  // Puts what has weight in the order of its keys. Returns how many there are.
  __device__ int sort_support(const EntmaxPower& power, const Lambda<float>& lambda) {
    const auto rule = EntmaxWeightRule::of(power);
    int num_kept = 0;
    for_each([&](int i, int) {
      // Against -inf, which has no finite distance from it, nothing has weight.
      score_[i] = score_[i] == -INFINITY
                      ? 0
                      : rule.terms((score_[i] - lambda.top) - lambda.above).weight;  // now weights
      const bool is_kept = score_[i] > 0;
      const uint32_t kept = team_ballot(is_kept);
      if (is_kept) {
        lists_.keys[num_kept + __popc(kept & ((1u << member_) - 1))] = key_[i];
      }
      num_kept += __popc(kept);
    });
    __syncwarp();
    int place[kOwn] = {};
    for (int other = 0; other < most_; ++other) {
      if (other >= num_kept) break;
      const int32_t key = lists_.keys[other];
      for_each([&](int i, int) { place[i] += key < key_[i] ? 1 : 0; });
    }
    for_each([&](int i, int) {
      if (score_[i] > 0) lists_.sorted[place[i]] = {key_[i], score_[i]};
    });
    __syncwarp();
    return num_kept;
  }

 private:
  // Calls visit(i, place) for the slots that some team of the warp uses.
  template <class Visit>
  __device__ __forceinline__ void for_each(Visit visit) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (i * kTeam < most_) visit(i, i * kTeam + member_);
    }
  }

  RowLists& lists_;
  const int member_;
  const int count_;  // of the row
  int most_;         // of the rows of the warp
  bool is_finite_ = true;
  float score_[kOwn];
  int32_t key_[kOwn];
};

__device__ void store_support(int32_t* to, const RowLists& lists, int count) {
  const int member = int(threadIdx.x) % kTeam;
#pragma unroll
  for (int first = 4 * member; first < kSupportKeys; first += 4 * kTeam) {
    int4 four;
    int32_t* const keys[4] = {&four.x, &four.y, &four.z, &four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) *keys[i] = first + i < count ? lists.sorted[first + i].key : -1;
    if (count > kSupportKeys && first == 0) four.x = kLongSupport;
#pragma unroll
    for (int i = 0; i < 4; ++i) to[first + i] = *keys[i];
  }
}

// out = the sum of weight * value over the sorted list.
template <class T, int kVectors>
__device__ void store_output(const EntmaxParams& p, int32_t batch, int32_t head, int64_t query,
                             const RowLists& lists, int count, bool is_mine) {
  const int member = int(threadIdx.x) % kTeam;
  const int32_t cols = p.sizes.v_head_dim;
  const T* const values = p.v.row<T>(batch, p.sizes.kv_head_of(head), 0);
  float sum[kVectors][kVector<T>] = {};
  for (int first = 0; first < count; first += kAtOnce) {
    uint4 raw[kAtOnce][kVectors];
    float weight[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const bool is_there = first + i < count;
      const Weighted pair = is_there ? lists.sorted[first + i] : Weighted{0, 0};
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
  if (!is_mine) return;
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

template <class T, int kVectors>
__global__ void __launch_bounds__(32 * kWarps)
    solve_candidates(const __grid_constant__ EntmaxParams p) {
  __shared__ RowLists all_lists[kRows];
  const uint32_t row = blockIdx.x * kRows + threadIdx.x / kTeam;
  const uint32_t rows = uint32_t(p.sizes.num_heads()) * uint32_t(p.sizes.q_len);
  const int32_t given = row < rows ? p.candidates.count[row] : kAlone;
  const uint32_t head_index = row / uint32_t(p.sizes.q_len);
  const int64_t query = row - head_index * uint32_t(p.sizes.q_len);
  const int32_t batch = int32_t(head_index) / p.sizes.heads;
  const int32_t head = int32_t(head_index) - batch * p.sizes.heads;
  RowLists& lists = all_lists[threadIdx.x / kTeam];

  TeamRow team(p, lists, row, max(given, 0));
  const bool is_mine = given >= 0 && team.is_all_finite();
  const float sink = p.sink != nullptr ? p.sink[head * p.sink_stride] : -INFINITY;
  const bool is_sink_fine = sink < INFINITY;  // not NaN
  if (p.top_k > 0) team.select(p.top_k);
  const Lambda<float> lambda = team.solve(p.power, is_sink_fine ? sink : -INFINITY);
  const int count = team.sort_support(p.power, lambda);
  const bool is_done = is_mine && is_sink_fine;
  if (threadIdx.x % kTeam == 0) {
    if (is_done && p.lse.data != nullptr) {
      *p.lse.row<float>(batch, head, query) = lambda.value();
    } else if (!is_done && given >= 0) {
      p.candidates.count[row] = kAlone;
    }
  }
  if (is_done && p.support.data != nullptr) {
    store_support(p.support.row<int32_t>(batch, head, query), lists, count);
  }
  store_output<T, kVectors>(p, batch, head, query, lists, is_done ? count : 0, is_done);
}

template <class T, int kVectors>
void launch(const EntmaxParams& params, cudaStream_t stream) {
  const int64_t rows =
      checked_mul(params.sizes.num_heads(), params.sizes.q_len, "attention: rows of the call");
  if (rows == 0) return;
  narrow(rows, "attention: rows of the call");
  solve_candidates<T, kVectors>
      <<<unsigned(ceil_div(rows, int64_t{kRows})), 32 * kWarps, 0, stream>>>(params);
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
    if (vectors <= 4) return launch<T, 4>(params, stream);
    KEYHOLE_ASSERT(vectors <= 8, "entmax: v with head_dim ", params.sizes.v_head_dim);
    launch<T, 8>(params, stream);
  });
}

}  // namespace keyhole::device
