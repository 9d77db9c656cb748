// cli/plan_tile.h
// The tile a plan would be followed with here, and the report on a plan with that tile.
#pragma once

#include <string>

#include "keyhole/plan.h"
#include "keyhole/tensor.h"
#include "runtime/dispatch.h"

namespace keyhole::cli {

// What would run on the CPU.
Choice choice_for(const Plan& plan, Operation operation, DType dtype, int64_t head_dim,
                  const Normalizer& normalizer = {});
// The tile that the forward kernel of this dtype and head_dim takes for this plan.
TileShape tile_for(const Plan& plan, DType dtype, int64_t head_dim,
                   const Normalizer& normalizer = {});

// The report for f32 and head_dim 128.
std::string explain_text(const Pattern& pattern, const Shape& shape);

}  // namespace keyhole::cli
