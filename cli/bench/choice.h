// cli/bench/choice.h
// Which kernel a pass of a case runs.
#pragma once

#include "cli/bench/case.h"
#include "keyhole/attention.h"
#include "runtime/dispatch.h"

namespace keyhole::bench {

Choice choice_for(const Case& c, Operation operation, const Lists& lists,
                  const AttentionOptions& options);

}  // namespace keyhole::bench
