// src/runtime/workspace.cpp
#include "runtime/workspace.h"

#include "base/check.h"

namespace keyhole {
namespace {

constexpr int64_t kAlignment = 256;

void check_alignment(const void* workspace) {
  const auto rest = int64_t(reinterpret_cast<uintptr_t>(workspace) % kAlignment);
  KEYHOLE_CHECK(rest == 0, "a workspace begins ", rest, " bytes behind a multiple of ", kAlignment,
                "; it must be aligned to ", kAlignment, " bytes");
}

}  // namespace

void* workspace_of_caller(const Workspace& brought, const AllocateWorkspace& allocate,
                          int64_t bytes) {
  void* workspace = brought.data;
  if (workspace != nullptr) {
    KEYHOLE_CHECK(brought.bytes >= bytes, "attention: the workspace has ", brought.bytes,
                  " bytes; this call needs ", bytes,
                  ". forward_workspace_bytes() and backward_workspace_bytes() tell how many");
  } else if (allocate) {
    workspace = allocate(bytes);
    if (workspace == nullptr) {
      throw Error(ErrorKind::device, say("while allocating a workspace of ", bytes,
                                         " bytes: the function of the caller returned null"));
    }
  }
  check_alignment(workspace);
  return workspace;
}

}  // namespace keyhole
