// src/kernels/device/gather_forward.cu
// One warp per query. The warp is divided into teams. Each team takes one key at a time and has its
// own online softmax; their results are combined at the end. Only attended keys are ever read, so
// nothing has to be recomputed when a result is not finite.
//
//   team of 8 lanes, fp32, head_dim 128: a row is 4 x 8 vectors of 16 bytes; lane l has vectors
//   l, l + 8, l + 16, l + 24 of q, of each key and value, and of the output
#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/convert.cuh"
#include "kernels/device/gather_forward.h"
#include "kernels/device/key_list.cuh"
#include "kernels/device/pair_gradient.cuh"
#include "kernels/device/row_target.cuh"

namespace keyhole::device {
namespace {

constexpr int kWarpsPerCta = 4;
constexpr int kWidestRow = 576;

// For heads of up to kCols columns, kTeam lanes per key. kAligned: is_in_vectors of q, k and v.
template <class Storage, int kCols, int kTeam, bool kAligned>
struct GatherConfig {
  using T = Storage;
  static constexpr int team = kTeam, teams = 32 / kTeam;
  static constexpr int width = kVector<T>;
  static constexpr int vectors = (kCols + kTeam * width - 1) / (kTeam * width);  // per lane
  static constexpr int keys = vectors <= 2 ? 4 : 2;  // of a team at once: loads in flight
  static constexpr bool aligned = kAligned;
};

template <class C>
__device__ void load_row(uint4 (&raw)[C::vectors], const typename C::T* row, int32_t cols,
                         bool is_wanted) {
  const int32_t member = int32_t(threadIdx.x % C::team);
#pragma unroll
  for (int i = 0; i < C::vectors; ++i) {
    const int32_t col = (member + C::team * i) * C::width;
    raw[i] = uint4{};
    if (!is_wanted) continue;
    raw[i] = C::aligned ? load_vector(row, col, cols) : load_singly(row, col, cols);
  }
}

// One team's online softmax, over its keys.
template <class C>
struct Softmax {
  float max = -INFINITY, sum = 0;
  float out[C::vectors][C::width] = {};

  // Adds `values` with weights from `scores`. A missing key has a score of -inf and a value of 0.
  __device__ void absorb(const float (&scores)[C::keys],
                         const uint4 (&values)[C::keys][C::vectors]) {
    float top = max;
#pragma unroll
    for (int b = 0; b < C::keys; ++b) top = fmaxf(top, scores[b]);
    // If the maximum is not finite nothing is subtracted, so that an attended infinity shows.
    const float base = is_finite(top) ? top : 0;
    const float shrink = exp2f(max - base);
    float weight[C::keys], total = 0;
#pragma unroll
    for (int b = 0; b < C::keys; ++b) total += weight[b] = exp2f(scores[b] - base);
    sum = sum * shrink + total;
    max = top;
#pragma unroll
    for (int i = 0; i < C::vectors; ++i) {
#pragma unroll
      for (int e = 0; e < C::width; ++e) out[i][e] *= shrink;
#pragma unroll
      for (int b = 0; b < C::keys; ++b) {
        float value[C::width];
        convert<typename C::T>(values[b][i], value);
#pragma unroll
        for (int e = 0; e < C::width; ++e) out[i][e] += weight[b] * value[e];
      }
    }
  }

  // Combines with the result of the team whose lanes are `distance` away.
  __device__ void join(int distance) {
    const float other_max = __shfl_xor_sync(~0u, max, distance);
    const float other_sum = __shfl_xor_sync(~0u, sum, distance);
    const float top = fmaxf(max, other_max);
    const float own_share = weight_against(max, top), other_share = weight_against(other_max, top);
    sum = own_share * sum + other_share * other_sum;
    max = top;
#pragma unroll
    for (int i = 0; i < C::vectors; ++i) {
#pragma unroll
      for (int e = 0; e < C::width; ++e) {
        const float other = __shfl_xor_sync(~0u, out[i][e], distance);
        out[i][e] = own_share * out[i][e] + other_share * other;
      }
    }
  }
};

template <class C>
__global__ void __launch_bounds__(32 * kWarpsPerCta)
    gather_forward(const __grid_constant__ GatherForwardParams p) {
  using T = typename C::T;
  const int64_t row = int64_t{blockIdx.x} * kWarpsPerCta + threadIdx.x / 32;
  if (row >= p.sizes.num_heads() * p.sizes.q_len) return;
  const int32_t head_index = int32_t(row / p.sizes.q_len);
  const int64_t query = row - head_index * p.sizes.q_len;
  const int32_t batch = head_index / p.sizes.heads, head = head_index % p.sizes.heads;
  const int32_t kv_head = p.sizes.kv_head_of(head);
  const int32_t team = int32_t(threadIdx.x % 32) / C::team;
  const KeyList list =
      key_list(p.view, p.view.group_of_head(head_index), query / p.view.rows_per_list);
  const auto rule = CarefulRule::of(rule_of(p.sizes));

  float q[C::vectors][C::width];
  {
    uint4 raw[C::vectors];
    load_row<C>(raw, p.q.row<T>(batch, head, query), p.sizes.head_dim, true);
#pragma unroll
    for (int i = 0; i < C::vectors; ++i) convert<T>(raw[i], q[i]);
  }

  Softmax<C> softmax;
  constexpr int kStep = C::teams * C::keys;
  for (int32_t first = 0; first < list.count; first += kStep) {
    int32_t key[C::keys];
    bool has_key = false;
    uint4 k[C::keys][C::vectors], v[C::keys][C::vectors];
#pragma unroll
    for (int b = 0; b < C::keys; ++b) {
      key[b] = list.at(uint32_t(first + b * C::teams + team));
      has_key = has_key || key[b] >= 0;
    }
    if (!__any_sync(~0u, has_key)) continue;
#pragma unroll
    for (int b = 0; b < C::keys; ++b) {
      load_row<C>(k[b], p.k.row<T>(batch, kv_head, key[b]), p.sizes.head_dim, key[b] >= 0);
    }
#pragma unroll
    for (int b = 0; b < C::keys; ++b) {
      load_row<C>(v[b], p.v.row<T>(batch, kv_head, key[b]), p.sizes.v_head_dim, key[b] >= 0);
    }
    float score[C::keys];
#pragma unroll
    for (int b = 0; b < C::keys; ++b) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < C::vectors; ++i) {
        float value[C::width];
        convert<T>(k[b][i], value);
#pragma unroll
        for (int e = 0; e < C::width; ++e) dot += q[i][e] * value[e];
      }
#pragma unroll
      for (int step = C::team / 2; step > 0; step /= 2) dot += __shfl_xor_sync(~0u, dot, step);
      score[b] = key[b] < 0 ? -INFINITY : rule.score(rule.bend(dot));
    }
    softmax.absorb(score, v);
  }
#pragma unroll
  for (int distance = C::team; distance < 32; distance *= 2) softmax.join(distance);

  const RowFinish finish = finish_row(p, head_index, query, softmax.max, softmax.sum);
  const RowTarget<T> target = row_target<T>(p, head_index, query, finish);
  __syncwarp();  // all lanes have read the state's lse
  if (threadIdx.x % 32 == 0) store_lse(p, head_index, query, finish.lse2);
  if (team != 0) return;
  const int32_t cols = p.sizes.v_head_dim;
  const bool in_vectors = is_in_vectors<T>(p.out, cols);
#pragma unroll
  for (int i = 0; i < C::vectors; ++i) {
#pragma unroll
    for (int e = 0; e < C::width; e += 4) {
      const int32_t col = (int32_t(threadIdx.x % 32) + C::team * i) * C::width + e;
      float values[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        values[x] = col + x < cols ? target.value(col + x, softmax.out[i][e + x]) : 0;
      }
      target.store_four(col, cols, values, in_vectors);
    }
  }
}

template <class T, int kCols, int kTeam, bool kAligned>
void launch(const GatherForwardParams& params, cudaStream_t stream) {
  const int64_t rows = params.sizes.num_heads() * params.sizes.q_len;
  const int64_t ctas = ceil_div(rows, kWarpsPerCta);
  if (ctas == 0) return;
  const uint32_t grid = uint32_t(narrow(ctas, "attention: CTAs of the gather launch"));
  gather_forward<GatherConfig<T, kCols, kTeam, kAligned>>
      <<<grid, 32 * kWarpsPerCta, 0, stream>>>(params);
  check_cuda(cudaGetLastError(), "launching the gather forward");
}

// Aligned and unaligned rows use the same teams, which gives the same bits.
template <class T, bool kAligned>
void launch_for(const GatherForwardParams& params, int32_t cols, cudaStream_t stream) {
  if (cols <= 64) return launch<T, 64, 8, kAligned>(params, stream);
  if (cols <= 128) return launch<T, 128, 8, kAligned>(params, stream);
  if (cols <= 256) return launch<T, 256, 16, kAligned>(params, stream);
  launch<T, kWidestRow, 32, kAligned>(params, stream);
}

}  // namespace

void launch_gather_forward(const GatherForwardParams& params, DType dtype, cudaStream_t stream) {
  const int32_t head_dim = params.sizes.head_dim, v_head_dim = params.sizes.v_head_dim;
  const int32_t cols = std::max(head_dim, v_head_dim);
  KEYHOLE_ASSERT(cols <= kWidestRow, "a gather kernel was given head_dim ", cols);
  with_device_storage(dtype, [&](auto storage) {
    using T = decltype(storage);
    const bool is_aligned = is_in_vectors<T>(params.q, head_dim) &&
                            is_in_vectors<T>(params.k, head_dim) &&
                            is_in_vectors<T>(params.v, v_head_dim);
    is_aligned ? launch_for<T, true>(params, cols, stream)
               : launch_for<T, false>(params, cols, stream);
  });
}

}  // namespace keyhole::device
