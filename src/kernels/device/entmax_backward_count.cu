// src/kernels/device/entmax_backward_count.cu
// The places of a key's entries are neighbours. Where they begin, and the order among them, depend
// on who comes first; keys that are added in order are sorted later, and short.
#include "kernels/device/check_cuda.h"
#include "kernels/device/entmax_backward_count.h"
#include "kernels/device/entmax_pair.cuh"
#include "kernels/device/row_blocks.cuh"

namespace keyhole::device {
namespace {

constexpr int32_t kCountThreads = 256;
constexpr int32_t kRowsOfWarp = kBlockRows / (kCountThreads / 32);

// rows: of kRowsOfWarp from first_row on, by bit. The whole warp calls.
__device__ void queue_rows(const EntmaxBackwardParams& p, int64_t first_row, uint32_t rows) {
  const int32_t lane = int32_t(threadIdx.x % 32);
  unsigned long long at = 0;
  if (lane == 0) at = atomicAdd(&p.counters->num_queued, uint64_t(__popc(rows)));
  at = __shfl_sync(~0u, at, 0);
  if ((rows >> lane & 1) == 0) return;
  p.long_rows.queue[at + __popc(rows & ((1u << lane) - 1))] = {first_row + lane, 0, 0};
}

// One CTA per block of rows. A warp loads all its rows before it counts the first.
__global__ void __launch_bounds__(kCountThreads)
    count_rows(const __grid_constant__ EntmaxBackwardParams p) {
  const RowBlock block = my_row_block(p.sizes.heads, p.sizes.q_len);
  const int32_t unit = block.batch * p.sizes.kv_heads + p.sizes.kv_head_of(block.head);
  const int32_t lane = int32_t(threadIdx.x % 32), warp = int32_t(threadIdx.x / 32);
  const bool has_support = p.support.data != nullptr, keeps_tiles = p.keeps_tiles();
  uint32_t* const count = p.keys.count + unit * p.sizes.k_len;
  const int64_t first_row = block.head_index * p.sizes.q_len + block.first;
  int32_t key[kRowsOfWarp][2];
  float lambda[kRowsOfWarp];
#pragma unroll
  for (int32_t i = 0; i < kRowsOfWarp; ++i) {
    const int32_t index = warp * kRowsOfWarp + i;
    key[i][0] = key[i][1] = -1;
    lambda[i] = -INFINITY;
    if (index >= block.count) continue;
    const int64_t query = block.first + index;
    lambda[i] = *p.lambda.row<const float>(block.batch, block.head, query);
    if (!has_support) continue;
    const int32_t* keys = p.support.row<const int32_t>(block.batch, block.head, query);
    key[i][0] = keys[lane];
    key[i][1] = keys[lane + 32];
  }
  uint32_t alone = 0, listed = 0;  // rows of the warp, by bit; entries of this lane
#pragma unroll
  for (int32_t i = 0; i < kRowsOfWarp; ++i) {
    const int32_t index = warp * kRowsOfWarp + i;
    const bool is_listed = has_support && is_usable(__shfl_sync(~0u, key[i][0], 0), lambda[i]);
    // Rows without weights have nothing to give; the launch that follows lists clears their dq.
    bool is_alone = !has_support || (!is_listed && lambda[i] != -INFINITY);
    if (index >= block.count) continue;
    if (keeps_tiles && p.tiled.has_row(first_row + index)) is_alone = false;
    if (lane == 0) p.is_alone[first_row + index] = is_alone;
    if (is_alone) alone |= 1u << i;
    if (!is_listed) continue;
#pragma unroll
    for (const int32_t each : key[i]) {
      if (uint64_t(uint32_t(each)) >= uint64_t(p.sizes.k_len)) continue;
      atomicAdd(count + each, 1u);
      ++listed;
    }
  }
  listed = warp_sum(listed);
  if (lane == 0 && listed > 0) atomicAdd(p.long_rows.listed + unit, listed);
  if (alone != 0) queue_rows(p, first_row + warp * kRowsOfWarp, alone);
}

constexpr int32_t kKeysOfThread = 4, kCountedKeys = kCountThreads * kKeysOfThread;

// The sum of `own` over the threads before this one, and over all.
struct Scan {
  uint32_t before, all;
};
__device__ Scan scan_cta(uint32_t own) {
  __shared__ uint32_t of_warp[kCountThreads / 32];
  const int32_t lane = int32_t(threadIdx.x % 32), warp = int32_t(threadIdx.x / 32);
  uint32_t upto = own;
#pragma unroll
  for (int32_t step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += other;
  }
  if (lane == 31) of_warp[warp] = upto;
  __syncthreads();
  Scan scan = {upto - own, 0};
#pragma unroll
  for (int32_t w = 0; w < kCountThreads / 32; ++w) {
    if (w < warp) scan.before += of_warp[w];
    scan.all += of_warp[w];
  }
  return scan;
}

__device__ void queue_busy_key(const EntmaxBackwardParams& p, int32_t unit, int32_t key,
                               uint32_t count) {
  const uint32_t chunks = (count - 1) / kBusyChunk + 1;
  const uint32_t first = atomicAdd(&p.counters->num_busy, chunks);
  const int32_t slot = chunks == 1 ? -1 : int32_t(atomicAdd(&p.counters->num_slots, chunks));
  for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
    p.keys.busy[first + chunk] = {unit, key, int32_t(chunk), slot};
  }
}

// A thread has neighbouring keys of a unit.
__global__ void __launch_bounds__(kCountThreads)
    make_room(const __grid_constant__ EntmaxBackwardParams p, uint32_t ctas_per_unit) {
  __shared__ uint32_t begin_of_cta;
  const int32_t unit = int32_t(blockIdx.x / ctas_per_unit);
  const int64_t first = int64_t{blockIdx.x - uint32_t(unit) * ctas_per_unit} * kCountedKeys +
                        int64_t{threadIdx.x} * kKeysOfThread;
  const int64_t base = unit * p.sizes.k_len;
  const bool adds_long_rows = p.counters->num_queued > 0 && p.has_room(unit);
  uint32_t count[kKeysOfThread], own = 0;
#pragma unroll
  for (int32_t i = 0; i < kKeysOfThread; ++i) {
    count[i] = 0;
    if (first + i >= p.sizes.k_len) continue;
    count[i] = p.keys.count[base + first + i];
    if (adds_long_rows) {
      count[i] += p.long_rows.count[base + first + i];
      p.keys.count[base + first + i] = count[i];
    }
    own += count[i];
  }
  const Scan scan = scan_cta(own);
  if (threadIdx.x == 0) begin_of_cta = atomicAdd(p.keys.taken + unit, scan.all);
  __syncthreads();
  uint32_t begin = begin_of_cta + scan.before;
#pragma unroll
  for (int32_t i = 0; i < kKeysOfThread; ++i) {
    if (first + i >= p.sizes.k_len) break;
    p.keys.end[base + first + i] = begin;
    begin += count[i];
    if (count[i] > kMostOfWarp) queue_busy_key(p, unit, int32_t(first + i), count[i]);
  }
}

}  // namespace

void launch_entmax_backward_count(const EntmaxBackwardParams& params, cudaStream_t stream) {
  const Sizes& sizes = params.sizes;
  if (const uint32_t ctas = num_row_blocks(sizes.num_heads(), sizes.q_len); ctas > 0) {
    count_rows<<<ctas, kCountThreads, 0, stream>>>(params);
    check_cuda(cudaGetLastError(), "launching the count of listed keys");
  }
}

void launch_entmax_backward_room(const EntmaxBackwardParams& params, cudaStream_t stream) {
  const Sizes& sizes = params.sizes;
  const int64_t per_unit = ceil_div(sizes.k_len, int64_t{kCountedKeys});
  const int32_t ctas = narrow(checked_mul(params.num_units(), per_unit, "attention: CTAs"),
                              "attention: CTAs over all keys");
  if (ctas == 0) return;
  make_room<<<unsigned(ctas), kCountThreads, 0, stream>>>(params, uint32_t(per_unit));
  check_cuda(cudaGetLastError(), "launching the places of listed keys");
}

}  // namespace keyhole::device
