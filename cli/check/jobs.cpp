// cli/check/jobs.cpp
#include "cli/check/jobs.h"

#include <algorithm>

#include "base/check.h"
#include "pattern/smallest_shape.h"

namespace keyhole::cli {

void Jobs::skip(const Skipped& item) {
  if (skipped.empty() || skipped.back() != item) skipped.push_back(item);
}

bool is_wanted(const std::string& kernel, Device::Kind device, DType dtype,
               const CheckOptions& options) {
  if (!options.device.is_auto() && device != options.device.settle("check").kind) return false;
  if (!options.dtype.empty() && dtype != index_dtype_from(options.dtype)) return false;
  return kernel.find(options.kernel) != std::string::npos;
}

bool fits(const Pattern& pattern, const Shape& shape) {
  try {
    pattern.for_head(shape, shape.batch - 1, shape.heads - 1);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    return false;
  }
}

// Ragged lengths around tile edges. A pattern that brings its own lengths (at) gets those.
std::vector<Shape> shapes_for(const Pattern& pattern, const CheckOptions& options) {
  if (options.shape.is_given()) {
    const Shape shape = options.shape.shape("check", pattern);
    // Short of that, brute force answers within seconds.
    KEYHOLE_CHECK(std::max(shape.q_len, shape.k_len) <= 131072, "check: lengths ", shape.q_len,
                  " and ", shape.k_len, " would take minutes; accepted are up to 131072");
    return {shape};
  }
  std::vector<std::pair<int64_t, int64_t>> lengths = {{67, 67}, {45, 131}};
  if (options.all)
    lengths.insert(lengths.end(),
                   {{0, 5}, {1, 1}, {1, 200}, {128, 128}, {129, 255}, {90, 33}, {257, 257}});
  std::vector<Shape> shapes;
  const auto add = [&](int64_t q_len, int64_t k_len) {
    const Shape shape = smallest_shape(pattern, q_len, k_len);
    if (fits(pattern, shape)) shapes.push_back(shape);
  };
  for (const auto& [q_len, k_len] : lengths) add(q_len, k_len);
  for (int64_t q_len = 1; q_len <= 16 && shapes.empty(); ++q_len) {
    for (int64_t k_len = 1; k_len <= 16 && shapes.empty(); ++k_len) add(q_len, k_len);
  }
  return shapes;
}

}  // namespace keyhole::cli
