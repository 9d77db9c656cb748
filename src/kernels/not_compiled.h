// src/kernels/not_compiled.h
// What stands for a kernel that a build without a GPU leaves out: instantiations.cmake says which.
#pragma once

#include "base/check.h"

namespace keyhole {

[[noreturn]] inline void not_compiled() {
  throw Error(ErrorKind::unsupported,
              "this kernel was left out of a build that only shows that kernels compile "
              "(KEYHOLE_CUDA_OLDEST_ONLY=ON); configure with -DKEYHOLE_CUDA_OLDEST_ONLY=OFF");
}

}  // namespace keyhole
