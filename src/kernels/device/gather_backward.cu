// src/kernels/device/gather_backward.cu
// One warp per row. Lane l has columns l, l + 32, ...; the keys (or queries) of the row come one
// after another. Probabilities are computed twice, once for dq and once for dk and dv.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/gather_backward.h"
#include "kernels/device/key_list.cuh"
#include "kernels/device/pair_gradient.cuh"
#include "kernels/device/rows.cuh"

namespace keyhole::device {
namespace {

constexpr int32_t kPartWarps = 4;  // per CTA

// A row in the registers of a warp.
template <int32_t kSteps>
struct WarpRow {
  float value[kSteps] = {};

  template <class Storage>
  __device__ void load(const Storage* row, int32_t cols) {
#pragma unroll
    for (int32_t i = 0; i < kSteps; ++i) {
      const int32_t col = int32_t(threadIdx.x % 32) + 32 * i;
      value[i] = col < cols ? value_of(row[col]) : 0.f;
    }
  }
  __device__ float dot(const WarpRow& other) const {
    float sum = 0;
#pragma unroll
    for (int32_t i = 0; i < kSteps; ++i) sum += value[i] * other.value[i];
    return warp_sum(sum);
  }
  __device__ void add(float weight, const WarpRow& other) {
#pragma unroll
    for (int32_t i = 0; i < kSteps; ++i) value[i] += weight * other.value[i];
  }
  template <class Storage>
  __device__ void put(const GradientRow<Storage>& row) const {
#pragma unroll
    for (int32_t i = 0; i < kSteps; ++i) row.put(int32_t(threadIdx.x % 32) + 32 * i, value[i]);
  }
};

// Rows of all heads, in a grid-stride loop of warps.
template <class Visit>
__device__ void for_each_row_of_warp(int64_t num_heads, int64_t length, Visit visit) {
  const int64_t warp = int64_t{blockIdx.x} * kPartWarps + threadIdx.x / 32;
  for (int64_t row = warp; row < num_heads * length; row += int64_t{gridDim.x} * kPartWarps) {
    const int64_t head_index = row / length;
    visit(int32_t(head_index), row - head_index * length);
  }
}

template <class Storage, int32_t kSteps>
__global__ void __launch_bounds__(32 * kPartWarps)
    gather_query_gradients(const __grid_constant__ BackwardParams p,
                           const __grid_constant__ GatherView view) {
  const Sizes& sizes = p.sizes;
  const auto rule = CarefulRule::of(rule_of(sizes));
  for_each_row_of_warp(sizes.num_heads(), sizes.q_len, [&](int32_t head_index, int64_t query) {
    const int32_t batch = head_index / sizes.heads, head = head_index - batch * sizes.heads;
    const int32_t kv_head = sizes.kv_head_of(head);
    const float lse2 = p.lse2[head_index * sizes.q_len + query];
    const float delta = p.delta[head_index * sizes.q_len + query];
    WarpRow<kSteps> q, dout, dq;
    q.load(p.q.row<Storage>(batch, head, query), sizes.head_dim);
    dout.load(p.dout.row<Storage>(batch, head, query), sizes.v_head_dim);

    const KeyList list = key_list(view, view.group_of_head(head_index), query / view.rows_per_list);
    for (int32_t i = 0; i < list.count; ++i) {
      const int32_t key = list.at(uint32_t(i));
      if (key < 0) continue;
      WarpRow<kSteps> k, v;
      k.load(p.k.row<Storage>(batch, kv_head, key), sizes.head_dim);
      v.load(p.v.row<Storage>(batch, kv_head, key), sizes.v_head_dim);
      const PairGradient pair = pair_gradient(rule, q.dot(k), dout.dot(v) - delta, lse2);
      dq.add(pair.ds, k);
    }
    dq.put(gradient_row<Storage>(p.dq, p.sums.dq, p.found_nonfinite, sizes.heads, sizes.q_len,
                                 sizes.head_dim, batch, head, query));
  });
}

template <class Storage, int32_t kSteps>
__global__ void __launch_bounds__(32 * kPartWarps)
    gather_key_gradients(const __grid_constant__ BackwardParams p,
                         const __grid_constant__ GatherView view) {
  const Sizes& sizes = p.sizes;
  const auto rule = CarefulRule::of(rule_of(sizes));
  const int32_t heads_per_kv = sizes.heads / sizes.kv_heads;
  for_each_row_of_warp(sizes.batch * sizes.kv_heads, sizes.k_len, [&](int32_t unit, int64_t key) {
    const int32_t batch = unit / sizes.kv_heads, kv_head = unit - batch * sizes.kv_heads;
    WarpRow<kSteps> k, v, dk, dv;
    k.load(p.k.row<Storage>(batch, kv_head, key), sizes.head_dim);
    v.load(p.v.row<Storage>(batch, kv_head, key), sizes.v_head_dim);
    for (int32_t in_group = 0; in_group < heads_per_kv; ++in_group) {
      const int32_t head = kv_head * heads_per_kv + in_group;
      const int32_t head_index = batch * sizes.heads + head;
      const int32_t group = view.group_of_head(head_index);
      const int64_t t_list = group * view.k_len + key;
      const int32_t count = group >= 0 ? view.t_list_count[t_list] : 0;
      const int32_t* lists = count > 0 ? view.t_lists + view.t_list_begin[t_list] : nullptr;
      for (int32_t i = 0; i < count; ++i) {
        const int64_t end = view.first_query(lists[i] + 1);
        for (int64_t query = view.first_query(lists[i]); query < end; ++query) {
          WarpRow<kSteps> q, dout;
          q.load(p.q.row<Storage>(batch, head, query), sizes.head_dim);
          dout.load(p.dout.row<Storage>(batch, head, query), sizes.v_head_dim);
          const float lse2 = p.lse2[head_index * sizes.q_len + query];
          const float delta = p.delta[head_index * sizes.q_len + query];
          const PairGradient pair = pair_gradient(rule, q.dot(k), dout.dot(v) - delta, lse2);
          dk.add(pair.ds, q);
          dv.add(pair.p, dout);
        }
      }
    }
    dk.put(gradient_row<Storage>(p.dk, p.sums.dk, p.found_nonfinite, sizes.kv_heads, sizes.k_len,
                                 sizes.head_dim, batch, kv_head, key));
    dv.put(gradient_row<Storage>(p.dv, p.sums.dv, p.found_nonfinite, sizes.kv_heads, sizes.k_len,
                                 sizes.v_head_dim, batch, kv_head, key));
  });
}

template <class Storage, int32_t kSteps>
void launch(const BackwardParams& params, const GatherView& view, cudaStream_t stream) {
  const Sizes& sizes = params.sizes;
  const auto ctas = [](int64_t rows) {  // the kernels loop over the rest
    return unsigned(std::min(int64_t{1} << 24, ceil_div(rows, kPartWarps)));
  };
  const int64_t queries = int64_t{sizes.num_heads()} * sizes.q_len;
  const int64_t keys = int64_t{sizes.batch} * sizes.kv_heads * sizes.k_len;
  if (queries > 0) {
    gather_query_gradients<Storage, kSteps>
        <<<ctas(queries), 32 * kPartWarps, 0, stream>>>(params, view);
    check_cuda(cudaGetLastError(), "launching the backward pass of gathered keys, by query");
  }
  if (keys > 0) {
    gather_key_gradients<Storage, kSteps><<<ctas(keys), 32 * kPartWarps, 0, stream>>>(params, view);
    check_cuda(cudaGetLastError(), "launching the backward pass of gathered keys, by key");
  }
}

}  // namespace

void launch_gather_backward(const BackwardParams& params, const GatherView& view, DType dtype,
                            cudaStream_t stream) {
  with_device_storage(dtype, [&](auto storage) {
    using Storage = decltype(storage);
    const int32_t widest = std::max(params.sizes.head_dim, params.sizes.v_head_dim);
    KEYHOLE_ASSERT(widest <= 18 * 32, "gathered keys with head_dim ", widest);
    if (widest <= 2 * 32) {
      launch<Storage, 2>(params, view, stream);
    } else if (widest <= 4 * 32) {
      launch<Storage, 4>(params, view, stream);
    } else {
      launch<Storage, 18>(params, view, stream);
    }
  });
}

}  // namespace keyhole::device
