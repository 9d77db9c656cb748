// src/kernels/sm90/entmax_scan_producer.cuh
// The producer of the scan: one thread.
#pragma once

#include "kernels/device/shares.cuh"
#include "kernels/device/work.cuh"
#include "kernels/sm90/entmax_scan_shared.cuh"
#include "kernels/sm90/tensor_maps.h"

namespace keyhole::sm90 {

struct ScanParams {
  device::Sizes sizes;
  device::DeviceTensor q;
  device::CandidateLists candidates;
  TileView view;
  int32_t most_left;  // rows of a query tile left alone from which on it is given up
};

template <class C>
class ScanProducer {
 public:
  __device__ ScanProducer(const ScanParams& p, const RowMaps& keys, ScanShared<C>& shared)
      : p_(p), keys_(keys), shared_(shared) {
    prefetch(&keys.longer);
  }

  __device__ __forceinline__ void load() {
    for (device::ShareCursor at(p_.view.work.shares); at.is_valid(); at.next()) {
      const WorkItem item = at.item().work;
      follow(device::work_of(p_.sizes, p_.view, item, item.head));
    }
    await_room();
    item().num_tiles = 0;
    arrive(shared_.full[k_.stage]);
  }

 private:
  __device__ __forceinline__ ScanItem& item() {
    return shared_.items[num_items_ % (C::stages + 1)];
  }
  __device__ __forceinline__ void await_room() {
    shared_.waits.await(shared_.empty[k_.stage], k_.parity ^ 1);
  }

  __device__ __forceinline__ void follow(const device::Work& work) {
    const ClassRows rows = keys_.of_class(int32_t(work.residue.first_k));
    const auto load = [&](int32_t tile, int32_t bitmap) {
      await_room();
      shared_.bitmap[k_.stage] = bitmap;
      shared_.tile[k_.stage] = tile;
      arrive_and_expect(shared_.full[k_.stage], ScanShared<C>::k_bytes);
      copy_tile<typename ScanShared<C>::Keys>(
          shared_.k[k_.stage], rows.map, shared_.full[k_.stage],
          {0, tile * C::tile_k, rows.class_at, work.kv_head, work.batch});
      k_.next();
    };
    const int32_t num_tiles = work.num_tiles;
    await_room();  // by then every warp has ended the item that had this place
    const int64_t first_row = int64_t{work.row_tile} * kScanRows;
    item() = {.num_tiles = max(num_tiles, 1),
              .num_looks = num_tiles,
              .head_index = work.head_index,
              .batch = work.batch,
              .head = work.head,
              .num_rows = int32_t(min(int64_t{kScanRows}, work.residue.num_q - first_row)),
              .first_query = work.residue.first_q + p_.view.stride * first_row,
              .first_key = work.residue.first_k,
              .num_left = 0};
    const volatile int32_t& num_left = item().num_left;
    ++num_items_;
    if (num_tiles == 0) return load(0, kNothingAttends);
    for (device::TileWalk walk(work); walk.is_valid(); walk.next()) {
      load(walk.tile(), walk.bitmap());
    }
    for (device::TileWalk walk(work); walk.is_valid(); walk.next()) {
      if (num_left >= p_.most_left) return give_up();
      load(walk.tile(), walk.bitmap());
    }
  }
  __device__ __forceinline__ void give_up() {
    await_room();
    shared_.bitmap[k_.stage] = kGivenUp;
    arrive(shared_.full[k_.stage]);
    k_.next();
  }

  const ScanParams& p_;
  const RowMaps& keys_;
  ScanShared<C>& shared_;
  PipelineState<C::stages> k_;
  uint32_t num_items_ = 0;
};

}  // namespace keyhole::sm90
