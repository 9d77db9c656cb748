// src/kernels/sm80/index_loss_dq.cuh
// dq of an indexer: the gradients of q . k of 16 heads of a row, times the keys. Four warps take
// the keys 16 at a time, in turn.
#pragma once

#include <algorithm>

#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/loss_sums.cuh"
#include "kernels/device/rows.cuh"
#include "kernels/device/storage.h"
#include "kernels/mma/gather_products.cuh"
#include "kernels/mma/gather_rows.cuh"
#include "kernels/mma/kept_weights.cuh"
#include "kernels/sm80/index_loss_launch.h"

namespace keyhole::sm80 {

// As mma::GatherShape, for keys alone.
template <int kHeadDim>
struct LossDqShape {
  static constexpr int head_dim = kHeadDim, blocks = 1;
  static constexpr int warps = 4, threads = 32 * warps, slots = 2;
  static constexpr int row_bytes = 2 * kHeadDim;
  static constexpr int slot_bytes = mma::kStepKeys * row_bytes;
  static constexpr int result_pitch = kHeadDim + 8;
  static constexpr int result_bytes = device::kPairRows * result_pitch * 4;
  static constexpr int warp_bytes = std::max(slots * slot_bytes, result_bytes);
  static constexpr int warp_floats = warp_bytes / 4;
  static constexpr int shared_bytes = warps * warp_bytes;
};

template <class T, class S>
__global__ void __launch_bounds__(S::threads)
    index_loss_dq(const __grid_constant__ LossPairs p,
                  const __grid_constant__ device::DeviceTensor dq) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int64_t row = blockIdx.x / uint32_t(p.row_tiles);
  const int32_t tile = int32_t(blockIdx.x - row * p.row_tiles);
  const auto unit = int32_t(row / p.loss.num_rows);
  const int64_t query = device::query_at(p.loss, row - unit * p.loss.num_rows);
  if (query < 0) return;
  const int32_t batch = unit / p.loss.groups, group = unit % p.loss.groups;
  const int32_t warp = int32_t(threadIdx.x / 32);
  const uint32_t slots = mma::smem_address(shared) + warp * S::warp_bytes;

  const device::AnyTensor& k = p.loss.k;
  const mma::GatheredTensor keys = {
      reinterpret_cast<const char*>(static_cast<const T*>(k.at.data) + k.offset(batch, group, 0)),
      k.at.row_stride * int64_t(sizeof(T)), p.heads.head_dim};
  const int32_t* const list = p.lists.keys + row * p.lists.room;
  const int32_t count = p.lists.counts[row];
  const char* const kept =
      p.d_scores + (row * p.row_tiles + tile) * p.lists.room * device::kPairBytes;
  const auto place_of = [&](int32_t step) { return (step * S::warps + warp) * mma::kStepKeys; };
  const auto copy_step = [&](int32_t step, uint32_t slot) {
    const int32_t place = place_of(step) + int32_t(threadIdx.x % mma::kStepKeys);
    const int32_t key = place < count ? __ldg(list + place) : -1;
    if (place_of(step) < count) mma::copy_gathered<S::head_dim>(slot, keys, key);
    mma::commit_copies();
  };
  mma::KeptWeights next;
  const auto load_weights = [&](int32_t step) {
    next.load(kept + int64_t{place_of(step)} * device::kPairBytes, count - place_of(step));
  };
  copy_step(0, slots);
  copy_step(1, slots + S::slot_bytes);
  load_weights(0);

  float sums[1][S::head_dim / 8][4] = {};
  uint32_t slot = slots;
#pragma unroll 1
  for (int32_t step = 0; place_of(step) < count; ++step) {
    uint32_t weights[1][4];
    mma::weights_of(next, weights[0]);
    load_weights(step + 1);
    mma::await_copies<1>();
    __syncwarp();
    mma::add_products<T, S>(sums, weights, slot);
    __syncwarp();
    copy_step(step + 2, slot);
    slot = slot == slots ? slots + S::slot_bytes : slots;
  }
  mma::await_copies<0>();
  __syncwarp();
  mma::leave_products<S>(sums, reinterpret_cast<float*>(shared + warp * S::warp_bytes));
  __syncthreads();
  const int32_t first_head = tile * device::kPairRows;
  const int32_t heads = min(p.heads.heads - first_head, device::kPairRows);
  for (int32_t i = warp; i < heads; i += S::warps) {
    T* const to = dq.row<T>(batch, group * p.heads.heads + first_head + i, query);
    const float* const from = reinterpret_cast<const float*>(shared) + i * S::result_pitch;
    for (int32_t col = int32_t(threadIdx.x % 32); col < p.heads.head_dim; col += 32) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < S::warps; ++w) sum += from[w * S::warp_floats + col];
      to[col] = device::stored_as<T>(sum);
    }
  }
  // dw of rows that several CTAs shared.
  if (p.parts.segments == 1 || p.dw.data == nullptr) return;
  for (int32_t i = int32_t(threadIdx.x); i < heads; i += S::threads) {
    float sum = 0;
    for (int32_t segment = 0; segment < p.parts.segments; ++segment) {
      sum += p.parts.dw[(row * p.parts.segments + segment) * p.heads.heads + first_head + i];
    }
    *p.dw.row<float>(batch, group * p.heads.heads + first_head + i, query) = sum;
  }
}

template <DType kType, int kHeadDim>
void launch_index_loss_dq(const LossPairs& params, const device::DeviceTensor& dq,
                          cudaStream_t stream) {
  using T = device::Storage<kType>;
  using S = LossDqShape<kHeadDim>;
  const int64_t ctas = int64_t{params.loss.units} * params.loss.num_rows * params.row_tiles;
  if (ctas == 0) return;
  const auto kernel = index_loss_dq<T, S>;
  mma::reserve_for_gather<S>(kernel);
  kernel<<<unsigned(narrow(ctas, "index_loss_backward: CTAs")), S::threads, S::shared_bytes,
           stream>>>(params, dq);
  check_cuda(cudaGetLastError(), "launching dq of an indexer");
}

}  // namespace keyhole::sm80
