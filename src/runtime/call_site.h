// src/runtime/call_site.h
// Where a call runs: in host memory, or on a GPU that is current as long as the site lives. Its
// lists and its scratch memory are there.
#pragma once

#include <functional>
#include <memory>

#include "kernels/contract.h"
#include "keyhole/lists.h"
#include "keyhole/workspace.h"

namespace keyhole {

// How a kernel follows lists: its tile, the layout of its bitmaps, and the heads of the call.
struct Following {
  TileShape tile = {64, 128};
  BitmapLayout bitmaps = BitmapLayout::row_major;
  TensorView q, k;                // [batch, heads, length, ...]: the shapes that the lists are for
  const char* who = "attention";  // begins the error about a bad entry
};

class CallSite {
 public:
  virtual ~CallSite() = default;
  CallSite() = default;
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  // The stream, and the properties of the GPU; no scratch memory.
  virtual Launch launch() const = 0;
  // A plan or an index tensor. The view is valid until the work that is queued before the end of
  // this site has run.
  virtual PlanView follow(const Lists& lists, const Following& how) = 0;
  // Calls run(memory) with so many bytes, aligned to 256; on a GPU in stream order, and the
  // caller's where it provides them.
  virtual void with_scratch(int64_t bytes, const std::function<void(void*)>& run) = 0;
};

// threads: of a CPU. stream, allocate: of a GPU; allocate must live as long as the site. Throws
// Error(usage) if there is no such GPU.
std::unique_ptr<CallSite> call_site(const Device& device, int threads, void* stream,
                                    const AllocateWorkspace& allocate);

}  // namespace keyhole
