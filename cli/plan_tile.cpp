// cli/plan_tile.cpp
#include "cli/plan_tile.h"

#include "runtime/list_facts.h"
#include "runtime/registry.h"

namespace keyhole::cli {

TileShape tile_for(const Plan& plan, DType dtype, int64_t head_dim, const Normalizer& normalizer) {
  return choice_for(plan, Operation::forward, dtype, head_dim, normalizer).tile;
}

Choice choice_for(const Plan& plan, Operation operation, DType dtype, int64_t head_dim,
                  const Normalizer& normalizer) {
  const PlanFacts facts(plan);
  Request request{"auto", operation, dtype, head_dim, head_dim};
  request.normalizer = normalizer;
  request.lists = &facts;
  return choose_call(kernel_table(), request);
}

std::string explain_text(const Pattern& pattern, const Shape& shape) {
  const Plan made = plan(pattern, shape);
  const TileShape tile = tile_for(made, DType::f32, 128);
  return "tile      " + to_string(tile) + ", queries x keys\n" + made.explain(tile).text();
}

}  // namespace keyhole::cli
