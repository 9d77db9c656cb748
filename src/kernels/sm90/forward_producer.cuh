// src/kernels/sm90/forward_producer.cuh
// The producer warpgroup: one thread plans and loads queries, one loads keys and values
// (forward_shared.cuh has the picture).
#pragma once

#include "kernels/device/shares.cuh"
#include "kernels/sm90/forward_shared.cuh"
#include "kernels/sm90/tensor_maps.h"

namespace keyhole::sm90 {

// Fills in a planned item. All divisions happen here, once, instead of in every consumer thread.
// `read` is a copy of the work item in registers.
template <class C>
__device__ __forceinline__ void write_item(const ForwardParams& p, const ForwardMaps& maps,
                                           const ShareItem& item, const WorkItem& read,
                                           PlannedItem& planned) {
  planned.run = read.num_tiles == 0 ? TileRun{0, 1, kEmptyBitmap} : item.first;
  planned.result.item = &item.work;
  asm volatile("" ::: "memory");  // registers are few
  const device::Work work = device::work_of(p.sizes, p.view, read, read.head);
  planned.num_tiles = max(work.num_tiles, 1);
  planned.next_run = work.runs + 1;
  planned.kv_head = work.kv_head;
  planned.first_k = int32_t(work.residue.first_k);
  const auto first_q = int32_t(work.residue.first_q);
  const ClassRows queries = maps.q.of_class(first_q);
  planned.rows = {0, work.row_tile * C::tile_q, queries.class_at, work.head, work.batch};
  planned.queries = queries.map;

  const int64_t first_row = int64_t{work.row_tile} * C::tile_q;
  const int64_t query = work.residue.first_q + p.view.stride * first_row;
  PlannedResult& result = planned.result;
  result.head_index = work.head_index;
  result.slot = work.slot;
  result.num_rows = int32_t(min(int64_t{C::tile_q}, work.residue.num_q - first_row));
  result.query = query;
  result.is_all = work.slot < 0 && p.is_first && p.is_last && p.sink == nullptr;
  const auto at = [&](const device::DeviceTensor& tensor) {
    return work.batch * tensor.batch_stride + work.head * tensor.head_stride +
           query * tensor.row_stride;
  };
  result.out_at = at(p.out);
  result.lse_at = at(p.lse);
  result.out_map = maps.out.map_of_class(first_q);
}

template <class Tile>
__device__ __forceinline__ void load_tile(const unsigned char* to, const CUtensorMap* map,
                                          uint64_t& is_full, const BoxAt& at) {
  arrive_and_expect(is_full, Tile::bytes * Tile::count);
  copy_tile<Tile>(to, map, is_full, at);
}

// The planner. The list of the next item is prefetched while the planner waits for a free slot. It
// also loads queries, because the producer blocks on keys and values that are still in use.
template <class C>
__device__ __forceinline__ void plan(const ForwardParams& p, const ForwardMaps& maps,
                                     ForwardShared<C>& shared) {
  prefetch(&maps.q.longer);
  uint32_t num_items = 0;  // planned so far; a PipelineState per ring would take more registers
  const auto await_place = [&] {
    shared.await(shared.planned_empty[num_items % kPlannedItems],
                 num_items / kPlannedItems % 2 ^ 1);
  };
  const auto await_room = [&] {
    shared.await(shared.q_empty[num_items % C::q_stages], num_items / C::q_stages % 2 ^ 1);
  };
  for (device::ShareCursor at(p.view.work.shares); at.is_valid(); at.next(), ++num_items) {
    const WorkItem read = at.item().work;
    prefetch(p.view.runs + read.first_run);
    PlannedItem& planned = shared.planned[num_items % kPlannedItems];
    await_place();
    write_item<C>(p, maps, at.item(), read, planned);
    arrive(shared.is_planned[num_items % kPlannedItems]);

    await_room();
    publish_stores();  // the stage held results; done here, because consumers would wait long
    load_tile<typename ForwardShared<C>::Queries>(
        shared.q[num_items % C::q_stages], planned.queries, shared.q_full[num_items % C::q_stages],
        planned.rows);
  }
  await_place();
  shared.planned[num_items % kPlannedItems].num_tiles = 0;
  arrive(shared.is_planned[num_items % kPlannedItems]);
  await_room();
  arrive(shared.q_full[num_items % C::q_stages]);
}

template <class C>
class Producer {
 public:
  __device__ Producer(const ForwardMaps& maps, ForwardShared<C>& shared)
      : maps_(maps), shared_(shared) {
    for (const RowMaps* rows : {&maps.k, &maps.v}) prefetch(&rows->longer);
  }

  __device__ __forceinline__ void load() {
    while (true) {
      shared_.await(shared_.is_planned[planned_.stage], planned_.parity);
      const PlannedItem& planned = shared_.planned[planned_.stage];
      planned_.next();
      int32_t left = planned.num_tiles;
      if (left == 0) return;
      const Head head = {maps_.k.of_class(planned.first_k), maps_.v.of_class(planned.first_k).map,
                         planned.kv_head, planned.rows.batch};
      const TileRun* next_run = planned.next_run;
      TileRun run = planned.run, next = {};
      int32_t tile = run.tile;
      load_keys(head, tile, run.bitmap);
      while (true) {
        run.count = min(run.count, left);
        left -= run.count;
        if (left > 0) next = *next_run++;  // loads while this run is processed
        for (const int32_t end = run.tile + run.count; ++tile < end;) {
          load_keys(head, tile, run.bitmap);
          load_values(head, tile - 1);
        }
        --tile;  // its values are not loaded yet
        if (left == 0) break;
        run = next;
        load_keys(head, run.tile, run.bitmap);
        load_values(head, tile);
        tile = run.tile;
      }
      load_values(head, tile);
    }
  }

 private:
  struct Head {
    ClassRows keys;
    const CUtensorMap* values;
    int32_t head, batch;
  };

  __device__ __forceinline__ void load_keys(const Head& head, int32_t tile, int32_t bitmap) {
    shared_.await(shared_.k_empty[k_.stage], k_.parity ^ 1);
    shared_.bitmap[k_.stage] = bitmap;
    load_tile<typename ForwardShared<C>::Keys>(
        shared_.k[k_.stage], head.keys.map, shared_.k_full[k_.stage],
        {0, tile * C::tile_k, head.keys.class_at, head.head, head.batch});
    k_.next();
  }
  __device__ __forceinline__ void load_values(const Head& head, int32_t tile) {
    shared_.await(shared_.v_empty[v_.stage], v_.parity ^ 1);
    load_tile<typename ForwardShared<C>::Keys>(
        shared_.v[v_.stage], head.values, shared_.v_full[v_.stage],
        {0, tile * C::tile_k, head.keys.class_at, head.head, head.batch});
    v_.next();
  }

  const ForwardMaps& maps_;
  ForwardShared<C>& shared_;
  PipelineState<kPlannedItems> planned_;
  PipelineState<C::k_stages> k_;
  PipelineState<C::v_stages> v_;
};

}  // namespace keyhole::sm90
