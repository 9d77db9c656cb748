// src/kernels/sm80/list_walk.cuh
// The CTA's list, in shared memory. One thread walks it two tiles ahead of the products, so that
// the mainloop keeps nothing of it in registers and never waits for it.
#pragma once

#include "kernels/device/work.cuh"
#include "kernels/mma/ptx.cuh"

namespace keyhole::sm80 {

using namespace mma;  // NOLINT: instructions, in the words of this backend

struct alignas(8) ListEntry {
  int32_t tile, bitmap;
};

class ListWalk {
 public:
  // Tile i of the work item; available for the current tile and the next one.
  __device__ __forceinline__ ListEntry entry(int32_t i) const { return entries_[i % kEntries]; }

  // Called by the first warp; a barrier must follow. first_tile: where a chunk begins inside its
  // list; at least one tile follows it.
  __device__ void begin(const TileRun* runs, int32_t num_runs, int32_t first_tile) {
    const int32_t lane = int32_t(threadIdx.x % 32);
    int32_t skip = first_tile, first = 0;
    while (skip > 0 && first < num_runs) {
      // 32 runs at a time: how many of them end before the chunk begins
      const int32_t run = first + lane;
      int32_t end = run < num_runs ? runs[run].count : 0;
#pragma unroll
      for (int32_t step = 1; step < 32; step *= 2) {
        const int32_t before = __shfl_up_sync(~0u, end, step);
        if (lane >= step) end += before;
      }
      const int32_t passed = __popc(__ballot_sync(~0u, run < num_runs && end <= skip));
      first += passed;
      if (passed > 0) skip -= __shfl_sync(~0u, end, passed - 1);
      if (passed < 32) break;
    }
    if (lane != 0) return;
    const TileRun run = runs[first];
    tile_ = run.tile + skip;
    left_ = run.count - skip;
    bitmap_ = run.bitmap;
    next_run_ = runs + first + 1;
    runs_left_ = num_runs - first - 1;
    for (ListEntry& entry : entries_) entry = {tile_, bitmap_};  // a valid tile even past the end
    if (runs_left_ > 0) next_ = *next_run_;
    find(1);
  }

  // Called by thread 0 with i = 2, 3, ..., with a barrier after each call. What the previous call
  // copied must have arrived. Past the end of the list the result is arbitrary.
  __device__ __forceinline__ void find(int32_t i) {
    ++tile_;
    if (--left_ <= 0 && runs_left_ > 0) {
      tile_ = next_.tile;
      left_ = next_.count;
      bitmap_ = next_.bitmap;
      const TileRun* run = ++next_run_;
      if (--runs_left_ > 0) {
        copy_async_word(smem_address(&next_.tile), &run->tile);
        copy_async_word(smem_address(&next_.count), &run->count);
        copy_async_word(smem_address(&next_.bitmap), &run->bitmap);
      }
    }
    entries_[i % kEntries] = {tile_, bitmap_};
  }

 private:
  static constexpr int32_t kEntries = 4;  // a power of two; three are in use at a time

  ListEntry entries_[kEntries];
  int32_t tile_, left_, bitmap_;  // position of the walk, and tiles left in its run
  TileRun next_;                  // the next run; copied while the walk is in the first tile
  int32_t runs_left_;             // from next_ on
  const TileRun* next_run_;
};

// How many tiles a list has. All lanes of a warp call, and all get the result.
__device__ inline int32_t count_tiles(const TileRun* runs, int32_t num_runs) {
  int32_t tiles = 0;
  for (int32_t run = int32_t(threadIdx.x % 32); run < num_runs; run += 32) tiles += runs[run].count;
  return __reduce_add_sync(~0u, tiles);
}

}  // namespace keyhole::sm80
