// src/runtime/workspace.cpp
#include "runtime/workspace.h"

#include "base/check.h"

namespace keyhole {
namespace {

constexpr int64_t kAlignment = 256;

// whose: what the caller knows this memory by.
void check_alignment(const void* workspace, const char* whose) {
  const auto rest = int64_t(reinterpret_cast<uintptr_t>(workspace) % kAlignment);
  KEYHOLE_CHECK(rest == 0, whose, " begins ", rest, " bytes behind a multiple of ", kAlignment,
                "; a workspace must be aligned to ", kAlignment,
                " bytes, as what cudaMalloc gives");
}

}  // namespace

void* workspace_of_caller(const Workspace& brought, const AllocateWorkspace& allocate,
                          int64_t bytes) {
  if (brought.data != nullptr) {
    KEYHOLE_CHECK(brought.bytes >= bytes, "attention: the workspace has ", brought.bytes,
                  " bytes; this call needs ", bytes,
                  ". forward_workspace_bytes() and backward_workspace_bytes() tell how many");
    check_alignment(brought.data, "the memory of options.workspace");
    return brought.data;
  }
  if (!allocate) return nullptr;
  void* const provided = allocate(bytes);
  if (provided == nullptr) {
    throw Error(ErrorKind::device, say("while allocating a workspace of ", bytes,
                                       " bytes: the function of the caller returned null"));
  }
  check_alignment(provided, "the memory that options.allocate returned");
  return provided;
}

}  // namespace keyhole
