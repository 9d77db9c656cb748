// src/runtime/cuda/kept_by_graphs.cpp
#include "runtime/cuda/kept_by_graphs.h"

#include "base/late_drops.h"
#include "kernels/device/check_cuda.h"

namespace keyhole {
namespace {

// One per process, never destroyed: graphs may outlive everything else.
LateDrops& left_by_graphs() {
  static auto* const left = new LateDrops;
  return *left;
}

using Held = std::shared_ptr<void>;

void CUDART_CB let_go(void* held) {
  const std::unique_ptr<Held> owned(static_cast<Held*>(held));
  left_by_graphs().hand_over(std::move(*owned));
}

}  // namespace

void keep_in_graph(cudaGraph_t graph, std::shared_ptr<void> kept) {
  auto held = std::make_unique<Held>(std::move(kept));
  cudaUserObject_t object = nullptr;
  check_cuda(cudaUserObjectCreate(&object, held.get(), let_go, 1, cudaUserObjectNoDestructorSync),
             "making a CUDA graph keep its plan");
  held.release();  // let_go deletes it
  const cudaError_t status = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (status != cudaSuccess) cudaUserObjectRelease(object, 1);
  check_cuda(status, "making a CUDA graph keep its plan");
}

void free_what_graphs_left(cudaStream_t stream) {
  LateDrops& left = left_by_graphs();
  if (left.is_empty()) [[likely]]
    return;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) {
    cudaGetLastError();  // during another capture the default stream cannot be queried: try later
    return;
  }
  if (capture == cudaStreamCaptureStatusNone) left.drop_all();
}

}  // namespace keyhole
