// src/kernels/mma/gather_rows.cuh
// The rows of a matrix product over a list of keys, and how rows and keys are copied to shared
// memory. The rows are the query heads that share a kv head, for each query that shares the list:
//
//   row r:  head   kv_head * heads_per_kv + r % heads_per_kv
//           query  first_query + r / heads_per_kv
//
// A CTA takes some neighbouring rows. Heads may have lists of their own: then the CTA processes one
// list after another, each for its members among the rows.
#pragma once

#include "base/check.h"
#include "base/int_math.h"
#include "kernels/device/check_cuda.h"
#include "kernels/device/key_list.cuh"
#include "kernels/mma/gather_config.h"
#include "kernels/mma/ptx.cuh"
#include "kernels/mma/row_swizzle.cuh"

namespace keyhole::mma {

using device::GatherForwardParams;
using device::KeyList;

struct GatherRows {
  int32_t batch, kv_head, heads_per_kv;
  int64_t list;         // query / rows_per_list
  int64_t first_query;  // of the list
  int32_t first_row;    // of the CTA, counted in the list
  int32_t count;        // of the CTA

  __device__ int32_t head(int32_t row) const {
    return kv_head * heads_per_kv + (first_row + row) % heads_per_kv;
  }
  __device__ int64_t query(int32_t row) const {
    return first_query + (first_row + row) / heads_per_kv;
  }
};

inline __host__ __device__ int64_t rows_per_list(const device::Sizes& sizes,
                                                 const GatherView& view) {
  return int64_t{view.rows_per_list} * (sizes.heads / sizes.kv_heads);
}

// The order of CTAs: the rows of a list, then the lists of a kv head, then the kv heads.
template <int kRows>
__device__ GatherRows my_gather_rows(const device::Sizes& sizes, const GatherView& view) {
  GatherRows rows;
  rows.heads_per_kv = sizes.heads / sizes.kv_heads;
  const uint32_t ctas_per_list = uint32_t(rows_per_list(sizes, view) + kRows - 1) / uint32_t(kRows);
  const uint32_t list = blockIdx.x / ctas_per_list;
  const uint32_t kv_index = list / uint32_t(view.lists);
  rows.batch = int32_t(kv_index) / sizes.kv_heads;
  rows.kv_head = int32_t(kv_index) % sizes.kv_heads;
  rows.list = int64_t{list - kv_index * uint32_t(view.lists)};
  rows.first_query = rows.list * view.rows_per_list;
  rows.first_row = int32_t(blockIdx.x - list * ctas_per_list) * kRows;
  const int64_t queries = min(int64_t{view.rows_per_list}, sizes.q_len - rows.first_query);
  rows.count = max(0, min(int32_t(queries) * rows.heads_per_kv - rows.first_row, kRows));
  return rows;
}

// Calls visit(group, members) for every group of lists among the CTA's rows; bit i of members: row
// i. All warps see the same.
template <class Visit>
__device__ __forceinline__ void for_each_group(const device::Sizes& sizes, const GatherView& view,
                                               const GatherRows& rows, Visit visit) {
  const int32_t row = int32_t(threadIdx.x % 32);
  const bool is_row = row < rows.count;
  const int32_t mine = is_row ? view.group_of_head(rows.batch * sizes.heads + rows.head(row)) : -1;
  for (uint32_t left = __ballot_sync(~0u, is_row); left != 0;) {
    const int32_t group = __shfl_sync(~0u, mine, __ffs(int(left)) - 1);
    const uint32_t members = __ballot_sync(~0u, is_row && mine == group);
    visit(group, members);
    left &= ~members;
    if (left != 0) __syncthreads();  // shared memory is free again
  }
}

// Copies the rows of a tensor shaped like q. Rows that are not members and columns past `cols`
// become zeros: 0 x NaN would spread. All threads of the CTA call. Rows: GatherRows or the like.
template <class T, class S, class Rows>
__device__ __forceinline__ void copy_row_members(uint32_t smem, const device::DeviceTensor& from,
                                                 int32_t cols, const Rows& rows, uint32_t members) {
  constexpr int chunks = S::head_dim / 8;
#pragma unroll 1
  for (int i = int(threadIdx.x); i < S::rows * chunks; i += S::threads) {
    const int row = i / chunks, chunk = i % chunks;
    const bool is_inside = (members >> row & 1) != 0 && chunk * 8 < cols;
    const T* source = static_cast<const T*>(from.data);
    if (is_inside) source = from.row<T>(rows.batch, rows.head(row), rows.query(row)) + chunk * 8;
    copy_async_or_zeros(smem + RowSwizzle<S::head_dim>::offset(row, chunk), source, is_inside);
  }
}

// The keys or values of one head; single rows of it are copied.
struct GatheredTensor {
  const char* first;  // row 0
  int64_t row_bytes;
  int32_t cols;
};
template <class T, class Rows>
__device__ __forceinline__ GatheredTensor gathered(const device::DeviceTensor& tensor,
                                                   const Rows& rows, int32_t cols) {
  return {reinterpret_cast<const char*>(tensor.row<T>(rows.batch, rows.kv_head, 0)),
          tensor.row_stride * int64_t(sizeof(T)), cols};
}

// The keys of step `step` of a warp, kStepKeys of them, in lanes l and l + 16; -1: none.
template <class S>
__device__ __forceinline__ int32_t keys_of_step(const KeyList& list, uint32_t step) {
  const uint32_t place = (step * S::warps + threadIdx.x / 32) * kStepKeys + threadIdx.x % kStepKeys;
  if constexpr (S::calls == GatherCalls::plain) return list.single_at(place);
  return list.at(place);
}
// Whether a step of a warp begins before the end of the list.
template <class S>
__device__ __forceinline__ bool has_step(const KeyList& list, uint32_t step) {
  return (step * S::warps + threadIdx.x / 32) * kStepKeys < uint32_t(list.count);
}
__device__ __forceinline__ uint32_t which_are_there(int32_t keys) {
  return __ballot_sync(~0u, keys >= 0) & ((1u << kStepKeys) - 1);
}

// Copies the rows of kStepKeys keys, zeros for missing ones. Called by a warp. Eight lanes take 128
// neighbouring bytes of a row (four lanes 64 bytes, if rows have 192 bytes).
template <int kHeadDim>
__device__ __forceinline__ void copy_gathered(uint32_t slot, const GatheredTensor& from,
                                              int32_t keys) {
  constexpr int lanes = RowSwizzle<kHeadDim>::mask + 1, rows_at_once = 32 / lanes;
  const uint32_t lane = threadIdx.x % 32, my_row = lane / lanes, my_chunk = lane % lanes;
  const char* mine = from.first + my_chunk * 16;
#pragma unroll
  for (int row = 0; row < kStepKeys; row += rows_at_once) {
    const int32_t key = __shfl_sync(~0u, keys, row + int(my_row));
    const char* source = mine + int64_t(max(key, 0)) * from.row_bytes;
    const int32_t cols_left = key < 0 ? 0 : from.cols - int32_t(my_chunk) * 8;
    const uint32_t to = slot + RowSwizzle<kHeadDim>::offset(row + my_row, my_chunk);
#pragma unroll
    for (int chunk = 0; chunk < kHeadDim / 8; chunk += lanes) {
      copy_async_or_zeros(to + chunk * 16, source + chunk * 16, chunk * 8 < cols_left);
    }
  }
}

// The same where 32 bits say where a row is, in units of 16 bytes. The lane that has a key says it.
template <int kHeadDim>
__device__ __forceinline__ void copy_gathered_units(uint32_t slot, const GatheredTensor& from,
                                                    int32_t keys) {
  constexpr int lanes = RowSwizzle<kHeadDim>::mask + 1, rows_at_once = 32 / lanes;
  const uint32_t lane = threadIdx.x % 32, my_row = lane / lanes, my_chunk = lane % lanes;
  const char* const mine = from.first + my_chunk * 16;
  const uint32_t units = uint32_t(max(keys, 0)) * uint32_t(from.row_bytes / 16);
  const uint32_t there = __ballot_sync(~0u, keys >= 0) >> my_row;
  const int32_t cols_left = from.cols - int32_t(my_chunk) * 8;
#pragma unroll
  for (int row = 0; row < kStepKeys; row += rows_at_once) {
    const uint32_t his = __shfl_sync(~0u, units, row + int(my_row));
    const char* const source = mine + uint64_t{his} * 16;
    const bool is_there = (there >> row & 1) != 0;
    const uint32_t to = slot + RowSwizzle<kHeadDim>::offset(row + my_row, my_chunk);
#pragma unroll
    for (int chunk = 0; chunk < kHeadDim / 8; chunk += lanes) {
      copy_async_or_zeros(to + chunk * 16, source + chunk * 16, is_there && chunk * 8 < cols_left);
    }
  }
}

template <class S>
__device__ __forceinline__ void copy_keys(uint32_t slot, const GatheredTensor& from, int32_t keys) {
  if constexpr (S::calls == GatherCalls::plain) {
    copy_gathered_units<S::head_dim>(slot, from, keys);
  } else {
    copy_gathered<S::head_dim>(slot, from, keys);
  }
}

// Whether a call is plain (gather_config.h).
template <class Params>
bool is_plain(const Params& p, const GatherView& view) {
  const auto has_few_units = [&](const device::DeviceTensor& rows) {
    constexpr int64_t kMost = int64_t{8} << 32;  // elements
    return rows.row_stride >= 0 && (view.k_len == 0 || rows.row_stride <= kMost / view.k_len);
  };
  return p.sizes.softcap == 0 && view.table.keys_per_entry == 1 && has_few_units(p.k) &&
         has_few_units(p.v);
}

// Shared memory for the slots of a kernel.
template <class S, class Kernel>
void reserve_for_gather(Kernel kernel) {
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared_bytes),
      "reserving shared memory for key lists");
  // Copies bypass the L1 cache, so all of its memory can be shared memory.
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared),
             "preferring shared memory for key lists");
}

// Queues one launch over a part, with S::rows rows per CTA.
template <class S, class Kernel, class... Params>
void launch_gather(Kernel kernel, const device::Sizes& sizes, const GatherView& view,
                   cudaStream_t stream, const Params&... params) {
  const int64_t rows = rows_per_list(sizes, view);
  const int64_t ctas = int64_t{sizes.batch} * sizes.kv_heads * view.lists * ceil_div(rows, S::rows);
  KEYHOLE_CHECK(rows + S::rows <= INT32_MAX && ctas <= INT32_MAX, "key lists: there are ", ctas,
                " x ", S::rows, " rows of key lists, ", rows, " with one list; at most ", INT32_MAX,
                " of either fit one launch: split the batch");
  if (ctas == 0) return;
  reserve_for_gather<S>(kernel);
  kernel<<<uint32_t(ctas), S::threads, S::shared_bytes, stream>>>(params...);
  check_cuda(cudaGetLastError(), "launching a pass over key lists");
}

}  // namespace keyhole::mma
