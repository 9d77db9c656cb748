// src/kernels/device/row_objection.h
#pragma once

#include <string>

#include "base/check.h"
#include "kernels/contract.h"

namespace keyhole::device {

// Kernels on tensor cores know tanh to 1e-7 of 1, and so a score to 1e-7 of the softcap.
inline constexpr double kMostSoftcap = 4096;

// What kernels on tensor cores ask of rows, which they copy in pieces of 16 bytes, and of shared
// memory.
inline std::string row_objection(const Request& request, int64_t least_shared_bytes) {
  if (request.softcap > kMostSoftcap && request.has_softcap) {
    return say("takes softcaps up to ", kMostSoftcap);
  }
  if (!request.is_aligned) return "needs rows that begin at multiples of 16 bytes";
  if (request.head_dim % 8 != 0 || request.v_head_dim % 8 != 0) {
    return say("takes head_dim in multiples of 8, not ", request.head_dim, " and ",
               request.v_head_dim);
  }
  if (request.shared_bytes < least_shared_bytes) {
    return say("needs ", least_shared_bytes, " bytes of shared memory per CTA; this GPU gives ",
               request.shared_bytes);
  }
  return {};
}

}  // namespace keyhole::device
