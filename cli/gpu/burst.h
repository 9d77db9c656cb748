// cli/gpu/burst.h
// What the kernels that measure a peak share.
#pragma once

#include <algorithm>
#include <functional>

#include "cli/gpu/measure.h"
#include "kernels/device/check_cuda.h"

namespace keyhole::bench {

// Sums that no kernel gives, so that nothing is stored and nothing can be left out.
inline constexpr float kNeverASum = -1.25e30f;

// The best of several: a peak is what the machine can do. The first ones also raise the clocks.
inline double best_ms(const Device& device, const std::function<void()>& call) {
  constexpr int kBursts = 12;
  const Stopwatch stopwatch = gpu_stopwatch(device, /*is_cold=*/false);
  double best = stopwatch(call, 1);
  for (int i = 1; i < kBursts; ++i) best = std::min(best, stopwatch(call, 1));
  return best;
}

}  // namespace keyhole::bench
