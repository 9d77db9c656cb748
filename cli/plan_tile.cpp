// cli/plan_tile.cpp
#include "cli/plan_tile.h"

#include "runtime/dispatch.h"
#include "runtime/registry.h"

namespace keyhole::cli {

TileShape tile_for(const Plan& plan, DType dtype, int64_t head_dim) {
  const Request request{"auto", Operation::forward, dtype, head_dim, head_dim};
  return pick_tile(choose(kernel_table(), request), plan);
}

std::string explain_text(const Pattern& pattern, const Shape& shape) {
  const Plan made = plan(pattern, shape);
  const TileShape tile = tile_for(made, DType::f32, 128);
  return "tile      " + to_string(tile) + ", queries x keys\n" + made.explain(tile).text();
}

}  // namespace keyhole::cli
