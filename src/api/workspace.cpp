// src/api/workspace.cpp
#include "keyhole/workspace.h"

#include "runtime/gpu.h"

namespace keyhole {

void release_workspaces(const Device& device) {
  if (device.kind == Device::Kind::cuda) release_workspaces_on_gpu(device);
}

}  // namespace keyhole
