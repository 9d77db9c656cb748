// src/kernels/mma/gather_spans.cuh
// The second half of a backward pass over spans of keys (device/span_lists.h): dk and dv. A CTA has
// 64 columns of the gradients of some spans in shared memory, and follows the lists in order:
//
//   a slot    the columns of 16 query rows (of q or dout), and some keys of the spans that are
//             paired with them: their places, and the weights of the 16 rows
//   a stage   some slots; producer warps fill them by asynchronous copies (barriers.cuh)
//   a step    16 keys x 16 columns of sums += weights . rows, by one of the other warps
//
// A warp has 16 columns of one span to itself, so every sum has a fixed order.
#pragma once

#include "kernels/mma/gather_spans_producer.cuh"
#include "kernels/mma/gather_spans_sums.cuh"
#include "kernels/mma/gather_spans_walk.cuh"

namespace keyhole::mma {

template <class T, class S>
__global__ void __launch_bounds__(S::threads, 1)
    gather_spans(const __grid_constant__ SpanParams p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ SpanShared<S> shared;
  const int32_t warp = int32_t(threadIdx.x / 32), lane = int32_t(threadIdx.x % 32);
  const SpanWork work = my_span_work<S>(p);
  const SpanGradient& of = work.is_dv ? p.dv : p.dk;
  const uint32_t sums =
      (smem_address(memory) + S::sums_row_bytes - 1) & ~uint32_t{S::sums_row_bytes - 1};
  const uint32_t slots = sums + S::sums_bytes;
  for (int i = int(threadIdx.x); i < S::sums_bytes / 16; i += S::threads) {
    store_shared_vector(sums + i * 16, {});
  }
  if (threadIdx.x == 0) {
    shared.waits = {};
    for (int i = 0; i < S::stages; ++i) {
      init_barrier(shared.full[i], SpanProducer<T, S>::kArrivals);
      init_barrier(shared.free[i], S::consumers);
    }
  }
  __syncthreads();

  if (warp >= S::consumers) {
    SpanProducer<T, S> producer(p, work, of, slots, sums);
#pragma unroll 1
    while (producer.fill(p, shared)) {
    }
    await_copies<0>();
  } else {
    const int32_t slice = warp % S::slices, span = warp / S::slices;
    const uint32_t rows_at =
        RowSwizzle<S::cols>::offset(uint32_t(lane) % 16, uint32_t(lane) / 16 + 2 * slice);
    const uint32_t my_sums = uint32_t(slice * 64 + lane % 4 * 16);
#pragma unroll 1
    for (PipelineState<S::stages> state;; state.next()) {
      shared.waits.await(shared.full[state.stage], state.parity);
      if (shared.is_last[state.stage]) break;
      uint32_t packed[S::slots];
#pragma unroll
      for (int i = 0; i < S::slots; i += 4) {
        const uint4 four = load_shared_vector(smem_address(&shared.keys[state.stage][i]));
        packed[i] = four.x, packed[i + 1] = four.y, packed[i + 2] = four.z, packed[i + 3] = four.w;
      }
      add_stage<T, S>(slots + state.stage * S::slots * S::slot_bytes, packed, span, rows_at,
                      my_sums);
      __syncwarp();
      if (lane == 0) arrive(shared.free[state.stage]);
    }
  }
  __syncthreads();
  shared.waits.end();

  // Adds the sums to those in memory, which no other CTA has.
  const int64_t first_key = int64_t{work.first_span} * device::kSpanKeys;
  const int32_t keys =
      int32_t(min(p.sizes.k_len - first_key, int64_t{S::spans * device::kSpanKeys}));
  float* const to = of.sums + (work.unit * p.sizes.k_len + first_key) * of.cols;
  for (int32_t i = int32_t(threadIdx.x); i < keys * S::slices * 4; i += S::threads) {
    const int32_t key = i / (S::slices * 4), quad = i % (S::slices * 4);
    const uint4 four = load_shared_vector(sums_at<S>(sums, key) ^ uint32_t(quad * 16));
    const int32_t col = work.first_col + quad / 4 * 16 + quad % 4 * 2;
    float2* const low = reinterpret_cast<float2*>(to + int64_t{key} * of.cols + col);
    if (col < of.cols) *low = {low->x + __uint_as_float(four.x), low->y + __uint_as_float(four.y)};
    float2* const high = low + 4;
    if (col + 8 < of.cols) {
      *high = {high->x + __uint_as_float(four.z), high->y + __uint_as_float(four.w)};
    }
  }
}

}  // namespace keyhole::mma
