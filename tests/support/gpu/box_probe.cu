// tests/support/gpu/box_probe.cu
#include "kernels/device/check_cuda.h"
#include "kernels/sm90/ptx.cuh"
#include "support/gpu/box_probe.h"
#include "support/gpu/gpu_array.h"

namespace keyhole::test {
namespace {

constexpr int kColumns = sm90::kBoxColumns;

// One CTA a box.
__global__ void copy_boxes(const __grid_constant__ sm90::RowMaps maps, int rows,
                           const BoxPlace* places, uint16_t* out) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int kMostRows = 128;
  __shared__ __align__(1024) uint16_t box[kMostRows * kColumns];
  __shared__ uint64_t barrier;
  const BoxPlace place = places[blockIdx.x];
  if (threadIdx.x == 0) {
    sm90::init_barrier(barrier, 1);
    sm90::publish_barriers();
    const sm90::ClassRows from = maps.of_class(place.first);
    sm90::arrive_and_expect(barrier, uint32_t(rows * kColumns * 2));
    sm90::copy_box(device::smem_address(box), from.map, barrier,
                   {place.column, place.row, from.class_at, place.head, place.batch});
  }
  __syncthreads();
  constexpr int kPatience = 1 << 20;
  int waited = 0;
  while (waited < kPatience && !sm90::is_over(barrier, 0)) ++waited;
  for (int i = int(threadIdx.x); i < rows * kColumns; i += int(blockDim.x)) {
    // Eight rows of eight pieces of 16 bytes: piece j of row r lies in place j ^ (r % 8).
    const int row = i / kColumns, col = i % kColumns, piece = (col / 8) ^ (row % 8);
    out[int64_t{blockIdx.x} * rows * kColumns + i] =
        waited < kPatience ? box[row * kColumns + piece * 8 + col % 8] : kNoBox;
  }
#endif
}

}  // namespace

std::vector<uint16_t> read_boxes(const sm90::RowMaps& maps, int rows,
                                 const std::vector<BoxPlace>& places) {
  const GpuArray<BoxPlace> where(places);
  const GpuArray<uint16_t> out(int64_t(places.size()) * rows * kColumns);
  copy_boxes<<<uint32_t(places.size()), 128>>>(maps, rows, where.get(), out.get());
  check_cuda(cudaGetLastError(), "launching the probe of boxes");
  return out.read();
}

}  // namespace keyhole::test
