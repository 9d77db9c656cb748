// src/runtime/gpu.h
// The GPUs of this machine, and calls on them. Without CUDA in the build, or without a driver,
// there are none, and why_no_gpu says why. Nothing touches a GPU before the first call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "kernels/contract.h"
#include "keyhole/lists.h"
#include "keyhole/workspace.h"
#include "runtime/call_site.h"
#include "runtime/index_lists.h"

namespace keyhole {

struct Gpu {
  std::string name;
  int compute_capability = 0;  // 10 * major + minor
  int num_processors = 0;
  int64_t shared_bytes = 0;  // the maximum per CTA
  int64_t l2_cache_bytes = 0, memory_bytes = 0;
};

std::span<const Gpu> gpus();
// "this build has no CUDA kernels", "no CUDA driver", ...; empty when there is a GPU.
const std::string& why_no_gpu();
// Why no kernel can run on such a GPU; empty when some can.
std::string why_refused(const Gpu& gpu);
// Throws Error(usage) when there is no such GPU, Error(unsupported) when it is refused.
const Gpu& gpu(const Device& device);

// Whether this build has CUDA kernels at all, GPU or not.
bool has_cuda_kernels();

// Prepares the lists on the GPU, provides a workspace (args.launch, else `allocate`, else the
// pool's), and queues the kernel on args.launch.stream.
void run_forward_on_gpu(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                        ForwardArgs args, const AllocateWorkspace& allocate);
void run_backward_on_gpu(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                         BackwardArgs args, const AllocateWorkspace& allocate);
int64_t forward_workspace_on_gpu(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                                 ForwardArgs args);
int64_t backward_workspace_on_gpu(const KernelEntry& kernel, const Lists& lists, TileShape tile,
                                  BackwardArgs args);

// call_site for a GPU.
std::unique_ptr<CallSite> call_site_on_gpu(const Device& device, void* stream,
                                           const AllocateWorkspace& allocate);

// The first entry of an index tensor on the GPU that is neither a key nor padding. Waits for the
// stream.
std::optional<BadEntry> find_bad_entry_on_gpu(const GatherView& lists, const Device& device,
                                              void* stream);

// Queues the merge of two results on the stream.
void merge_on_gpu(const TensorView& into_out, const TensorView& into_lse,
                  const TensorView& from_out, const TensorView& from_lse, void* stream);

// Gives back the memory of the workspace pool that no call is using.
void release_workspaces_on_gpu(const Device& device);

}  // namespace keyhole
