// src/kernels/sm80/entmax_scan_producer.cuh
// The producer of the scan: one warp.
#pragma once

#include "kernels/device/shares.cuh"
#include "kernels/device/work.cuh"
#include "kernels/mma/gather_rows.cuh"
#include "kernels/sm80/entmax_scan_shared.cuh"

namespace keyhole::sm80 {

// The rows of one head and residue class, which are copied 16 at a time.
template <class T>
__device__ __forceinline__ mma::GatheredTensor class_rows(const device::DeviceTensor& tensor,
                                                          int32_t batch, int32_t head,
                                                          int64_t first, const ScanParams& p) {
  return {reinterpret_cast<const char*>(tensor.row<T>(batch, head, first)),
          p.view.stride * tensor.row_stride * int64_t(sizeof(T)), p.sizes.head_dim};
}
// Of 16 rows from `first` on, the one that a lane names for copy_gathered: -1 beyond the last one.
__device__ __forceinline__ int32_t named_row(int64_t first, int64_t num_rows) {
  const int64_t row = first + threadIdx.x % 16;
  return row < num_rows ? int32_t(row) : -1;
}

template <class T, class C>
class ScanProducer {
 public:
  __device__ ScanProducer(const ScanParams& p, ScanShared<C>& shared) : p_(p), shared_(shared) {}

  __device__ __forceinline__ void load() {
    for (device::ShareCursor at(p_.view.work.shares); at.is_valid(); at.next()) {
      const WorkItem item = at.item().work;
      follow(device::work_of(p_.sizes, p_.view, item, item.head));
    }
    // No thread ends while its copies are under way.
    mma::commit_copies();
    mma::await_copies<0>();
  }

 private:
  __device__ __forceinline__ void follow(const device::Work& work) {
    const mma::GatheredTensor keys =
        class_rows<T>(p_.k, work.batch, work.kv_head, work.residue.first_k, p_);
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {  // the look, the scan
      for (device::TileWalk walk(work); walk.is_valid(); walk.next()) {
        load_tile(keys, work.residue.num_k, walk.tile(), walk.bitmap());
      }
    }
  }
  // Keys beyond the last one become zeros; bitmaps mask them.
  __device__ __forceinline__ void load_tile(const mma::GatheredTensor& keys, int64_t num_keys,
                                            int32_t tile, int32_t bitmap) {
    uint64_t& full = shared_.full[k_.stage];
    shared_.waits.await(shared_.empty[k_.stage], k_.parity ^ 1);
    if (threadIdx.x % 32 == 0) {
      shared_.bitmap[k_.stage] = bitmap;
      shared_.tile[k_.stage] = tile;
      mma::arrive(full);
    }
    __syncwarp();
    const uint32_t to = device::smem_address(shared_.k[k_.stage]);
#pragma unroll 1
    for (int first = 0; first < C::tile_k; first += 16) {
      mma::copy_gathered<C::head_dim>(to + first * C::row_bytes, keys,
                                      named_row(int64_t{tile} * C::tile_k + first, num_keys));
    }
    mma::arrive_when_copied(full);
    k_.next();
  }

  const ScanParams& p_;
  ScanShared<C>& shared_;
  mma::PipelineState<C::stages> k_;
};

}  // namespace keyhole::sm80
