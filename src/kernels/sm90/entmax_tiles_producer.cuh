// src/kernels/sm90/entmax_tiles_producer.cuh
// The producers of entmax over tiles.
#pragma once

#include "kernels/device/entmax_params.h"
#include "kernels/device/shares.cuh"
#include "kernels/sm90/entmax_tiles_shared.cuh"
#include "kernels/sm90/tensor_maps.h"

namespace keyhole::sm90 {

struct TilesParams {
  device::EntmaxParams entmax;
  TileView view;
  bool has_scan;  // false: the scan has not run
};

// A whole warp.
template <class C>
class TilesKeyProducer {
 public:
  __device__ TilesKeyProducer(const TilesParams& p, const EntmaxMaps& maps, TilesShared<C>& shared)
      : p_(p), maps_(maps), shared_(shared) {}

  __device__ __forceinline__ void load() {
    for (device::ShareCursor at(p_.view.work.shares); at.is_valid(); at.next()) {
      const LeftRows left = left_rows(work_at(at));
      if (left.number >= kFewestRowsForTiles && lane() == 0) {
        follow(work_at(at), left.needs_start);  // computed again: there are no registers to keep it
      }
      __syncwarp();
    }
    if (lane() != 0) return;
    await_end_of_item();
    shared_.item.work.num_tiles = 0;
    arrive(shared_.q_full);
  }

 private:
  static __device__ __forceinline__ int lane() { return int(threadIdx.x) % 32; }
  __device__ __forceinline__ device::Work work_at(const device::ShareCursor& at) const {
    const WorkItem item = at.item().work;
    return device::work_of(p_.entmax.sizes, p_.view, item, item.head);
  }
  __device__ __forceinline__ int64_t first_row(const device::Work& work) const {
    return int64_t{work.row_tile} * kScanRows;
  }
  __device__ __forceinline__ int32_t num_rows(const device::Work& work) const {
    return int32_t(min(int64_t{kScanRows}, work.residue.num_q - first_row(work)));
  }
  __device__ __forceinline__ int64_t first_query(const device::Work& work) const {
    return work.residue.first_q + p_.view.stride * first_row(work);
  }
  struct LeftRows {
    int number = 0;
    bool needs_start = false;
  };
  __device__ __forceinline__ LeftRows left_rows(const device::Work& work) const {
    if (work.num_tiles == 0) return {};
    if (!p_.has_scan) return {kScanRows, true};
    const device::CandidateLists& candidates = p_.entmax.candidates;
    const int64_t first = work.head_index * p_.entmax.sizes.q_len + first_query(work);
    int number = 0;
    bool needs_start = false;
    for (int row = lane(); row < num_rows(work); row += 32) {
      const int64_t at = first + int64_t{p_.view.stride} * row;
      if (candidates.count[at] != device::kAlone) continue;
      ++number;
      needs_start = needs_start || candidates.lambda_bound[at] == -INFINITY;
    }
    return {int(__reduce_add_sync(~0u, unsigned(number))), __any_sync(~0u, needs_start) != 0};
  }
  __device__ __forceinline__ void await_end_of_item() {
    shared_.waits.await(shared_.q_empty, num_items_ % 2 ^ 1);
  }

  __device__ __forceinline__ void follow(const device::Work& found, bool needs_start) {
    await_end_of_item();
    shared_.item = {found, needs_start, num_rows(found), first_query(found)};
    const device::Work& work = shared_.item.work;
    const ClassRows queries = maps_.q.of_class(int32_t(work.residue.first_q));
    arrive_and_expect(shared_.q_full, TilesShared<C>::q_bytes);
    copy_tile<typename TilesShared<C>::Queries>(
        shared_.q, queries.map, shared_.q_full,
        {0, int32_t(first_row(work)), queries.class_at, work.head, work.batch});
    ++num_items_;
    // The passes of the start have negative numbers.
    bool is_output = false;
    for (int pass = needs_start ? -num_start_passes(work.num_tiles) : 0; !is_output; ++pass) {
      is_output = load_pass(work, pass < 0 ? start_stride(work.num_tiles) : 1, pass <= 0);
    }
  }
  // Every n-th tile. Returns whether this pass was the output; not the first pass of sums, nor one
  // before. That is read before the last tile of the pass is loaded: consumers decide on the next
  // pass only when that tile has arrived.
  __device__ __forceinline__ bool load_pass(const device::Work& work, int stride, bool is_early) {
    const ClassRows keys = maps_.k.of_class(int32_t(work.residue.first_k));
    bool is_output = false;
    int32_t left = work.num_tiles;
    for (device::TileWalk walk(work); walk.is_valid(); walk.next()) {
      if (--left % stride != 0) continue;
      if (left == 0 && !is_early) is_output = await_decision();
      shared_.waits.await(shared_.k_empty[k_.stage], k_.parity ^ 1);
      shared_.bitmap[k_.stage] = walk.bitmap();
      arrive_and_expect(shared_.k_full[k_.stage], TilesShared<C>::k_bytes);
      copy_tile<typename TilesShared<C>::Keys>(
          shared_.k[k_.stage], keys.map, shared_.k_full[k_.stage],
          {0, walk.tile() * C::tile_k, keys.class_at, work.kv_head, work.batch});
      k_.next();
    }
    return is_output;
  }
  __device__ __forceinline__ bool await_decision() {
    shared_.waits.await(shared_.decided, num_decisions_++ % 2);
    return *static_cast<volatile int32_t*>(&shared_.is_output) != 0;
  }

  const TilesParams& p_;
  const EntmaxMaps& maps_;
  TilesShared<C>& shared_;
  PipelineState<C::stages> k_;
  uint32_t num_items_ = 0, num_decisions_ = 0;
};

// One thread.
template <class C>
__device__ __forceinline__ void load_values(const EntmaxMaps& maps, TilesShared<C>& shared) {
  PipelineState<C::stages> v;
  for (uint32_t num_items = 0;; ++num_items) {
    shared.waits.await(shared.q_full, num_items % 2);
    const device::Work work = shared.item.work;
    if (work.num_tiles == 0) return;
    const ClassRows values = maps.v.of_class(int32_t(work.residue.first_k));
    shared.waits.await(shared.output_begins, num_items % 2);
    for (device::TileWalk walk(work); walk.is_valid(); walk.next()) {
      shared.waits.await(shared.v_empty[v.stage], v.parity ^ 1);
      arrive_and_expect(shared.v_full[v.stage], TilesShared<C>::k_bytes);
      copy_tile<typename TilesShared<C>::Keys>(
          shared.v[v.stage], values.map, shared.v_full[v.stage],
          {0, walk.tile() * C::tile_k, values.class_at, work.kv_head, work.batch});
      v.next();
    }
  }
}

}  // namespace keyhole::sm90
