// src/pattern/fit.h
// Where a pattern meets a call: what knows its sizes (Node::sizes) refuses others. Whatever
// turns a pattern into pairs begins with Pattern::for_head, which calls check_fit.
#pragma once

#include "pattern/node.h"

namespace keyhole {

// Throws Error(usage) that names the part of the pattern, what it was made for, what the call has
// and the way out.
void check_fit(const Node& pattern, const Scope& scope);

}  // namespace keyhole
