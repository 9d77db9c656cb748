// src/kernels/device/entmax_objection.h
// What a scan of entmax and top_k (entmax_forward_call.h) does not take, on every backend with one.
#pragma once

#include <string>

#include "base/entmax.h"
#include "kernels/device/entmax_forward_call.h"
#include "kernels/device/row_objection.h"

namespace keyhole::device {

// As text; empty: nothing. fp32 has no launches over tiles, which the long rows of a small alpha
// need.
inline std::string scan_objection(const Request& request, int64_t least_shared_bytes) {
  const Normalizer& normalizer = request.normalizer;
  if (normalizer.top_k > kSupportKeys) return say("takes top_k up to ", kSupportKeys);
  if (request.dtype == DType::f32 && normalizer.top_k == 0 &&
      has_long_rows(EntmaxPower::of(normalizer.alpha))) {
    return say("takes alpha above ", kLongRowsAlpha, " in fp32, or a top_k");
  }
  return row_objection(request, least_shared_bytes);
}

}  // namespace keyhole::device
