// src/kernels/device/row_objection.h
#pragma once

#include <string>

#include "base/check.h"
#include "kernels/contract.h"

namespace keyhole::device {

// Tensor-core kernels compute tanh with an error of 1e-7, so a score with an error of 1e-7 times
// the softcap.
inline constexpr double kMostSoftcap = 4096;

// What tensor-core kernels require of rows, which they copy 16 bytes at a time, and of shared
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
