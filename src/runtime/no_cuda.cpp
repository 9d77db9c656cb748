// src/runtime/no_cuda.cpp
// gpu.h in a build without CUDA kernels: there is no GPU.
#ifndef KEYHOLE_HAVE_CUDA

#include "base/check.h"
#include "runtime/gpu.h"
#include "runtime/gpu_memory.h"

namespace keyhole {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::usage, say("no GPU: ", why_no_gpu(),
                                    "; build Keyhole with -DKEYHOLE_CUDA=ON, or pass tensors "
                                    "in host memory"));
}

}  // namespace

std::span<const Gpu> gpus() { return {}; }
const std::string& why_no_gpu() {
  static const std::string why = "no CUDA in this build";
  return why;
}
std::string why_refused(const Gpu&) { return why_no_gpu(); }
const Gpu& gpu(const Device&) { refuse(); }
bool has_cuda_kernels() { return false; }
void run_forward_on_gpu(const KernelEntry&, const Lists&, TileShape, ForwardArgs,
                        const AllocateWorkspace&) {
  refuse();
}
void run_backward_on_gpu(const KernelEntry&, const Lists&, TileShape, BackwardArgs,
                         const AllocateWorkspace&) {
  refuse();
}
int64_t forward_workspace_on_gpu(const KernelEntry&, const Lists&, TileShape, ForwardArgs) {
  refuse();
}
int64_t backward_workspace_on_gpu(const KernelEntry&, const Lists&, TileShape, BackwardArgs) {
  refuse();
}
std::unique_ptr<CallSite> call_site_on_gpu(const Device&, void*, const AllocateWorkspace&) {
  refuse();
}
std::optional<BadEntry> find_bad_entry_on_gpu(const GatherView&, const Device&, void*) { refuse(); }

void merge_on_gpu(const TensorView&, const TensorView&, const TensorView&, const TensorView&,
                  void*) {
  refuse();
}
void release_workspaces_on_gpu(const Device&) { refuse(); }

GpuMemory::GpuMemory(const Device&, int64_t) { refuse(); }
GpuMemory::~GpuMemory() = default;
GpuMemory::GpuMemory(GpuMemory&&) noexcept = default;
GpuMemory& GpuMemory::operator=(GpuMemory&&) noexcept = default;
void GpuMemory::copy_from_host(const void*, int64_t) const { refuse(); }
void GpuMemory::copy_to_host(void*, int64_t) const { refuse(); }
void GpuMemory::fill(int) const { refuse(); }
void synchronize(const Device&) { refuse(); }

}  // namespace keyhole

#endif  // KEYHOLE_HAVE_CUDA
