// src/runtime/workspace.h
// Whose memory the workspace of a call on a GPU is.
#pragma once

#include "keyhole/workspace.h"

namespace keyhole {

// So many bytes (at least one) of the caller: what it brought, else what `allocate` provides. Null
// if it gave neither. Throws if the memory is too small, absent or not aligned.
void* workspace_of_caller(const Workspace& brought, const AllocateWorkspace& allocate,
                          int64_t bytes);

}  // namespace keyhole
